"""The table of files holds every file that transformers reads in a folder; none is dropped without a word."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from transformers import tokenization_utils_base, utils
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

import folders
from cli_models import letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.contents import FILES
from t2r_runtime.errors import UserError

NOT_OF_TEXTS = re.compile("FEATURE|IMAGE|VIDEO|AUDIO|PROCESSOR|CARD|MODULE|TF2|FLAX|SENTENCEPIECE|CONFIG_NAME_")


def test_every_file_that_transformers_names_is_in_the_table() -> None:
    constants = {
        name: value for name, value in vars(utils).items() if re.fullmatch(r"\w*(WEIGHTS|CONFIG|INDEX)\w*NAME", name)
    }
    named = {value for name, value in constants.items() if not NOT_OF_TEXTS.search(name)}
    named |= {value for name, value in vars(tokenization_utils_base).items() if re.fullmatch(r"[A-Z_]+_FILE", name)}
    for family in IMPORTERS:
        found = TOKENIZER_MAPPING_NAMES.get(family)
        kind = None if found is None else tokenizer_class_from_name(found)
        named |= set() if kind is None else set(kind.vocab_files_names.values())
    assert len(named) > 15
    assert {name for name in named if not any(fnmatchcase(name, one) for one in FILES)} == set()


@pytest.mark.parametrize("tokenizer", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_noted_or_refused(name: str, tokenizer: bool, tmp_path: Path) -> None:
    """Or another file is read in its place, as in transformers."""
    llama = folders.write_llama(tmp_path / "llama")
    if tokenizer:
        (llama / "tokenizer.json").write_text(letter_tokenizer("abc"))
    file = llama / name.replace("*", "tool_use")
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        text = letter_tokenizer("abc") if name == "tokenizer.json" else json.dumps({"model_type": "llama"})
        file.write_text(text)
    try:
        found = checkpoint.load(llama)
    except UserError:
        assert FILES[name].use.startswith(("merged", "refused", "read"))
        return
    instead = any((llama / other).exists() for other in FILES[name].instead)
    noted = any(note.startswith(f"{name} is not read") or "tool_use" in note for note in found.notes)
    if "for a translator" in FILES[name].use:  # no tokenizer of a decoder reads it
        return
    assert noted or instead or name in found.provenance["origin"]["files"]
    assert not (noted and instead)

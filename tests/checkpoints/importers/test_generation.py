"""Import of each generation key, compared with transformers' `generate`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from fuzz import generation as fuzzed
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.hub import save_translator
from t2r_export.checkpoints.importers import generation as reader
from t2r_export.checkpoints.importers.generation_keys import CARRIED, DECODERS, GENERATION, HARMLESS, NOTED, TRANSLATORS
from t2r_export.config.generation import GenerationOptions
from t2r_runtime import Beam

BASE = {**fuzzed.SPECIAL, "decoder_start_token_id": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generates")
    fuzzed.make(folder)
    return folder


def folder(made: Path, here: Path, family: str, own: dict[str, Any] | None, config: dict[str, Any]) -> Path:
    shutil.copytree(made / f"generates-{family}", here / "hf")
    fuzzed.write(here / "hf", own, config)
    return here / "hf"


def test_every_field_of_transformers_is_in_one_table() -> None:
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields == GENERATION
    assert not CARRIED & HARMLESS and not CARRIED & NOTED.keys() and not HARMLESS & NOTED.keys()
    assert CARRIED >= DECODERS.keys() | TRANSLATORS.keys()


OWN: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("llama", {}, None),
    ("llama", {"max_length": 40}, None),
    ("llama", {"do_sample": False, "top_p": 0.9}, {"temperature": 0}),
    ("llama", {"temperature": 0.6}, {"temperature": 0}),
    ("llama", {"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_k": 50, "top_p": 0.9}),
    (
        "gpt2",
        {"do_sample": True, "top_k": None, "min_p": 0.1},
        {"temperature": 1, "top_k": 50, "top_p": 1, "min_p": 0.1},
    ),
    ("gpt2", {"repetition_penalty": 1.2}, {"temperature": 0, "repetition_penalty": 1.2}),
    ("marian", {"forced_eos_token_id": 1}, None),
    ("marian", {}, {"forced_end": False}),
    ("marian", {"forced_eos_token_id": None, "num_beams": 4}, {"width": 4, "forced_end": False}),
    (
        "bart",
        {"length_penalty": 2.0, "forced_eos_token_id": [1]},
        {"width": 1, "length_penalty": 2, "forced_end": True},
    ),
    ("bart", {"max_length": 9, "min_length": 3}, {"width": 1, "max_tokens": 8, "min_tokens": 2, "forced_end": False}),
    (
        "bart",
        {"max_length": 9, "max_new_tokens": 5, "min_new_tokens": 2, "early_stopping": "never", "num_beams": 2},
        {"width": 2, "max_tokens": 5, "min_tokens": 2, "early_stopping": "never", "forced_end": False},
    ),
]


@pytest.mark.parametrize("family, own, options", OWN, ids=[f"{family} {json.dumps(own)}" for family, own, _ in OWN])
def test_what_is_carried(
    family: str, own: dict[str, Any], options: dict[str, Any] | None, made: Path, tmp_path: Path
) -> None:
    found = checkpoint.load(folder(made, tmp_path, family, {**BASE, **own}, {}))
    assert found.notes == ()
    assert (None if found.config.generation is None else found.config.generation.to_dict()) == options


# family, generation_config.json (None: there is none), config.json
SAME: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = [
    ("bart", BASE, {"forced_bos_token_id": 5}),
    ("bart", {**BASE, "forced_bos_token_id": None, "bad_words_ids": None}, {"bad_words_ids": [[4]]}),
    ("bart", None, {"forced_bos_token_id": 5, "no_repeat_ngram_size": 2, "num_beams": 3}),
    ("bart", {**BASE, "num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "min_length": 5}, {}),
    ("marian", {**BASE, "repetition_penalty": 1.8, "num_beams": 2, "forced_eos_token_id": 1, "max_length": 7}, {}),
    ("marian", {**BASE, "eos_token_id": [7, 1], "forced_eos_token_id": 1, "max_new_tokens": 6}, {}),
    ("marian", {**BASE, "forced_eos_token_id": None, "max_length": 6}, {"forced_eos_token_id": 1}),
    ("marian", {**BASE, "bad_words_ids": [[9], [1]], "suppress_tokens": [5]}, {}),
    ("gpt2", {**BASE, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}),
    ("gpt2", {**BASE, "eos_token_id": None, "no_repeat_ngram_size": 1}, {"eos_token_id": None}),
    ("llama", None, {"do_sample": True, "temperature": 0.7, "top_k": None, "repetition_penalty": 2.0}),
    ("llama", {**BASE, "do_sample": True, "top_p": 0.6, "min_p": 0.2}, {"temperature": 9.0}),
]


@pytest.mark.parametrize("family, own, config", SAME, ids=[json.dumps(case) for case in SAME])
def test_texts_are_those_of_transformers(
    family: str, own: dict[str, Any] | None, config: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    said = fuzzed.compared(folder(made, tmp_path, family, own, config))
    assert said == "same"


def test_a_setting_that_is_lost_is_seen(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison, and so the fuzzer, detects a lost setting."""
    case = folder(made, tmp_path, "bart", {**BASE, "no_repeat_ngram_size": 1, "num_beams": 2}, {})
    monkeypatch.setattr(reader._Reader, "_penalties", lambda self: {})
    assert " for " in fuzzed.compared(case)


NOTES = [
    ("bart", "encoder_no_repeat_ngram_size", 2),
    ("bart", "begin_suppress_tokens", [4]),
    ("bart", "sequence_bias", [[[5], 4.0]]),
    ("bart", "exponential_decay_length_penalty", [3, 1.5]),
    ("bart", "forced_bos_token_id", 1),
    ("bart", "forced_eos_token_id", 6),
    ("bart", "do_sample", True),
    ("bart", "length_penalty", 20.0),
    ("marian", "max_length", 1),
    ("marian", "renormalize_logits", True),
    ("gpt2", "num_beams", 2),
    ("gpt2", "min_new_tokens", 4),
    ("gpt2", "bad_words_ids", [[5]]),
    ("llama", "stop_strings", ["x"]),
    ("llama", "no_repeat_ngram_size", 65),
    ("llama", "temperature", "hot"),
]


@pytest.mark.parametrize("family, key, value", NOTES, ids=[f"{family} {key}" for family, key, _ in NOTES])
def test_what_is_not_carried_is_a_note_by_name(family: str, key: str, value: Any, made: Path, tmp_path: Path) -> None:
    drawn = {"do_sample": True} if key == "temperature" else {}
    case = folder(made, tmp_path, family, {**BASE, **drawn, key: value}, {})
    (note,) = checkpoint.load(case).notes
    expected = (
        f"{key} {json.dumps(value)} in generation_config.json changes the text of transformers, and is not carried"
    )
    assert note == expected


def test_typical_p_matters_only_where_tokens_are_drawn(made: Path, tmp_path: Path) -> None:
    case = folder(made, tmp_path, "llama", {**BASE, "typical_p": 0.5}, {})
    assert checkpoint.load(case).notes == ()
    fuzzed.write(case, {**BASE, "typical_p": 0.5, "do_sample": True}, {})
    assert len(checkpoint.load(case).notes) == 1


@pytest.mark.parametrize("start", [{"decoder_start_token_id": None}, {"decoder_start_token_id": 99}])
def test_the_start_token_is_that_of_generation(start: dict[str, Any], made: Path, tmp_path: Path) -> None:
    case = folder(made, tmp_path, "marian", {**BASE, "decoder_start_token_id": 6}, start)
    assert checkpoint.load(case).config.start_tokens == (6,)
    fuzzed.write(case, {**fuzzed.SPECIAL, "bos_token_id": 4}, {})  # then transformers starts from BOS
    assert checkpoint.load(case).config.start_tokens == (4,)


def test_a_saved_folder_says_what_the_model_does(made: Path, tmp_path: Path) -> None:
    own = {**BASE, "num_beams": 3, "length_penalty": 0.5, "max_length": 8, "no_repeat_ngram_size": 2}
    before = checkpoint.load(folder(made, tmp_path, "marian", own, {}))
    assert before.config.generation is not None
    tried = (before.config.generation, None, GenerationOptions(forced_end=True, early_stopping=True))
    for number, generation in enumerate(tried):
        config, saved = dataclasses.replace(before.config, generation=generation), tmp_path / str(number)
        save_translator(dataclasses.replace(before, config=config), saved, "marian")
        again = checkpoint.load(saved)
        assert again.notes == () and (again.config.generation is None) == (generation is None)
        options = [None if one is None else one.to_dict() for one in (generation, again.config.generation)]
        ours, theirs = (dataclasses.replace(Beam().resolved(one), max_tokens=8) for one in options)
        assert ours == theirs
        assert fuzzed.compared(saved) == "same"

"""Special and added tokens of random folders, compared with AutoTokenizer of transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer

import folders
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers.files import Folder
from t2r_export.checkpoints.importers.special import SpecialTokens
from t2r_runtime.errors import UserError

LETTERS = "abcdefgh<>|sxyz "
CONTENTS = ["<s>", "</s>", "<x>", "a", "b", "<pad>", "ab", "<y>"]
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}  # of the class whose tokenizer.json is used as it is


class Drawn:
    """The files of a random folder. In all of them a content is either plain or has the same flags."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.flags = {content: self._flags() for content in CONTENTS} | {"<x>": None, "<y>": None}
        self.plain = [content for content, flags in self.flags.items() if flags is None]
        self.older = self.chance(0.4)  # with added_tokens.json

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def _flags(self) -> dict[str, bool] | None:
        names = ("lstrip", "rstrip", "normalized", "single_word")
        return {name: self.chance(0.5) for name in names if self.chance(0.4)} if self.chance(0.5) else None

    def token(self, **more: Any) -> Any:
        content = self.random.choice(CONTENTS)
        flags = None if self.older and more else self.flags[content]
        return content if flags is None else {**more, "content": content, **flags}

    def config(self) -> dict[str, Any]:
        of_config = {"__type": "AddedToken", "special": True}
        data: dict[str, Any] = {**FAST}
        data |= {name: self.random.choice([self.token(**of_config), None]) for name in NAMES if self.chance(0.4)}
        if self.chance(0.3):
            data["image_token"] = self.random.choice(self.plain)
        if self.chance(0.3):
            data["additional_special_tokens"] = [
                self.random.choice(self.plain) for _ in range(self.random.randrange(3))
            ]
        elif self.chance(0.3):
            data["extra_special_tokens"] = self.random.choice([[self.token(**of_config)], {"audio_token": "<y>"}])
        if self.chance(0.3):
            numbers = [str(self.random.randrange(30)) for _ in range(self.random.randrange(3))]
            contents = self.random.sample(CONTENTS, len(numbers))
            pairs = zip(numbers, contents, strict=True)
            data["added_tokens_decoder"] = {
                number: {"content": text, **(self.flags[text] or {}), "special": self.chance(0.5)}
                for number, text in pairs
            }
        return data

    def special(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            name: self.random.choice([self.token(), None]) for name in NAMES[1:] if self.chance(0.5)
        }
        if self.chance(0.3):
            data["additional_special_tokens"] = [self.random.choice(self.plain)]
        return data | ({"extra_special_tokens": [self.token()]} if self.chance(0.2) else {})

    def write(self, folder: Path) -> None:
        own = Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
        for text in self.random.sample(CONTENTS, self.random.randrange(3)):
            own.add_tokens([AddedToken(text, special=self.chance(0.5), normalized=self.chance(0.5))])
        own.save(str(folder / "tokenizer.json"))
        added = {self.random.choice(CONTENTS): 16 + number for number in range(self.random.randrange(3))}
        written = {
            "config.json": {"model_type": "llama"},
            **({"tokenizer_config.json": self.config()} if self.chance(0.9) else {}),
            **({"special_tokens_map.json": self.special()} if self.chance(0.6) else {}),
            **({"added_tokens.json": added} if self.older else {}),
        }
        for name, data in written.items():
            (folder / name).write_text(json.dumps(data))


def added(tokenizer: Any) -> dict[int, str]:
    return {number: repr(token) for number, token in tokenizer.get_added_tokens_decoder().items()}


@pytest.mark.parametrize("first", [0, 20, 40])
def test_they_are_those_of_auto_tokenizer(first: int, tmp_path: Path) -> None:
    changed = 0
    for seed in range(first, first + 20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        Drawn(seed).write(folder)
        theirs = AutoTokenizer.from_pretrained(folder)
        special, text = SpecialTokens(Folder(folder)), (folder / "tokenizer.json").read_text()
        whole = special.added_to(text, json.loads(text))
        changed += whole is not None
        assert added(Tokenizer.from_str(whole or text)) == added(theirs.backend_tokenizer), seed
        assert special.texts() == {name: one for name, one in theirs.special_tokens_map.items() if name in NAMES}, seed
    assert 5 < changed < 20


def test_they_are_merged_at_import(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path / "llama", vocab_size=31)
    Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, [])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "pad_token": {"content": "<x>"}}))
    (folder / "added_tokens.json").write_text(json.dumps({"<y>": 20}))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    found = checkpoint.load(folder)
    assert found.tokenizer is not None
    ids = Tokenizer.from_str(found.tokenizer).encode("a<s><x><y>").ids
    assert ids == AutoTokenizer.from_pretrained(folder)("a<s><x><y>")["input_ids"] == [0, 17, 18, 16]
    assert found.chat_template == {
        "template": "{{ bos_token }}{{ eos_token }}",
        "tokens": {"bos_token": "<s>", "pad_token": "<x>"},
    }
    [note] = found.notes
    assert note == "the chat template names eos_token, which tokenizer_config.json does not have: its text is empty"
    assert {"special_tokens_map.json", "added_tokens.json"} <= found.provenance["origin"]["files"].keys()


@pytest.mark.parametrize(
    "name, data",
    [
        ("added_tokens.json", {"<x>": "one"}),
        ("added_tokens.json", {"<x>": -1}),
        ("added_tokens.json", {"<x>": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": 3}}}),
        ("tokenizer_config.json", {"extra_special_tokens": [{"content": "<x>", "lstrip": "no"}]}),
    ],
)
def test_tokens_of_another_form_are_refused(name: str, data: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(data))
    with pytest.raises(UserError, match="tokenizer's files of|as added_tokens_decoder"):
        SpecialTokens(Folder(tmp_path)).added_to("{}", {})

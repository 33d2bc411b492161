"""Untrusted tokenizer.json files: a one-line error where the library panics, and memory bounded by the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, models, normalizers, processors
from tokenizers import Tokenizer as Library

from runtime.test_tokenizer import byte_level, pieces
from t2r_runtime import Tokenizer, UserError


def letters(**parts: Any) -> str:
    """A tokenizer of five letters with these parts."""
    made = Library(models.BPE({letter: n for n, letter in enumerate("abcde")}, []))
    for name, part in parts.items():
        setattr(made, name, part)
    return str(made.to_str())


def with_json(**parts: Any) -> str:
    return json.dumps({**json.loads(letters()), **parts})


PANICS = {
    "a stride as long as what is kept": {  # disabled before any text is read
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 10}
    },
    "a template without its token": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "a charsmap that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a merge inside a character": {
        "model": {
            **json.loads(letters())["model"],
            "continuing_subword_prefix": "éé",
            "vocab": {"a": 0, "éb": 1, "ab": 2},
            "merges": ["a éb"],
        }
    },
}


@pytest.mark.parametrize("name", PANICS)
def test_panic_is_user_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = with_json(**PANICS[name])
    if name.startswith("a stride"):
        assert Tokenizer(text).encode("abcde") == [0, 1, 2, 3, 4]
    else:
        with pytest.raises(UserError, match="expected the text of a tokenizer.json; received .*; use the tokenizer"):
            Tokenizer(text)
    assert capfd.readouterr() == ("", "")


def test_truncation_and_padding_disabled() -> None:
    """Training and the runtime see the same tokens."""
    made = Library.from_str(letters())
    made.enable_truncation(2)
    made.enable_padding(length=9)
    text = Tokenizer(made.to_str())
    assert text.encode("abcde") == [0, 1, 2, 3, 4]
    assert text.encode_documents(["abcde", "a", ""]) == [[0, 1, 2, 3, 4], [0], []]


def test_documents_have_no_special_tokens() -> None:
    made = Library.from_str(letters())
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 5)])
    text = Tokenizer(made.to_str())
    assert (text.encode("ab"), text.encode_documents(["ab"])) == ([5, 0, 1], [[0, 1]])


@pytest.mark.parametrize("text", [pieces(), byte_level()], ids=["pieces", "bytes"])
def test_common_regexes_accepted(text: str) -> None:
    usual = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.Lowercase(),
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
        ]
    )
    made = Library.from_str(text)
    made.normalizer = usual
    assert Tokenizer(made.to_str(), bos_token=1).encode("a")


@pytest.mark.parametrize("text", ["", "{}", "[", 3, None, b"{}"])
def test_no_tokenizer(text: Any) -> None:
    with pytest.raises(UserError, match="expected the text of a tokenizer.json; received "):
        Tokenizer(text)


def test_stream_without_tokens() -> None:
    text: Any = Tokenizer(letters())
    for call, argument in ((text.encode, 3), (text.decode, "ab"), (text.decode, [-1]), (text.encode_documents, [b"a"])):
        with pytest.raises(UserError):
            call(argument)

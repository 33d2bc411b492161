"""A stranger's tokenizer.json: one line where the library panics, and no more memory than a text is worth."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Library

from runtime.test_tokenizer import byte_level, pieces
from t2r_runtime import Tokenizer, UserError


def letters(**parts: Any) -> str:
    """A tokenizer of five letters with other parts."""
    made = Library(models.BPE({letter: n for n, letter in enumerate("abcde")}, []))
    for name, part in parts.items():
        setattr(made, name, part)
    return str(made.to_str())


def with_json(**parts: Any) -> str:
    return json.dumps({**json.loads(letters()), **parts})


PANICS = {
    "a stride as long as what is kept": {  # switched off before any text comes
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 10}
    },
    "a template without its token": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
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
def test_a_panic_is_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = with_json(**PANICS[name])
    if name.startswith("a stride"):
        assert Tokenizer(text).encode("abcde") == [0, 1, 2, 3, 4]
    else:
        with pytest.raises(UserError, match="expected the text of a tokenizer.json; received .*; use the tokenizer"):
            Tokenizer(text)
    assert capfd.readouterr() == ("", "")


def test_neither_cut_nor_filled_up() -> None:
    """By nobody: training and the runtime see the same tokens."""
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


@pytest.fixture
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


GROWING: dict[str, dict[str, Any]] = {
    "one letter, doubled thirty times": {"normalizer": normalizers.Sequence([normalizers.Replace("a", "aa")] * 30)},
    "what nobody types, doubled thirty times": {
        "normalizer": normalizers.Sequence([normalizers.Replace("☃", "☃☃")] * 30)
    },
    "every letter": {"normalizer": normalizers.Sequence([normalizers.Replace(Regex("."), "aaaa")] * 5)},
    "between letters": {"normalizer": normalizers.Sequence([normalizers.Replace("", "a")] * 40)},
    "much at once": {"normalizer": normalizers.Replace("a", "a" * 101)},
    "much before": {"normalizer": normalizers.Prepend("a" * 101)},
    "many parts": {"normalizer": normalizers.Sequence([normalizers.Lowercase()] * 300)},
    "one after another": {
        "normalizer": normalizers.Sequence([normalizers.Replace(a, b * 20) for a, b in ("ab", "bc", "cd", "de")])
    },
    "a decoder": {"decoder": decoders.Sequence([decoders.Replace("a", "aa")] * 30)},
    "in sequences of sequences": {
        "normalizer": normalizers.Sequence([normalizers.Sequence([normalizers.Replace("a", "a" * 60)])] * 9)
    },
}


@pytest.mark.parametrize("name", GROWING)
def test_what_multiplies_text_is_refused(name: str, little_memory: None) -> None:
    with pytest.raises(UserError, match="expected at most .* from a |expected at most 256 parts of a tokenizer's "):
        Tokenizer(letters(**GROWING[name]))


def test_too_many_tokens_for_a_text() -> None:
    template = processors.TemplateProcessing(single=" ".join(["<s>"] * 101 + ["$A"]), special_tokens=[("<s>", 5)])
    made = Library.from_str(letters())
    made.add_special_tokens(["<s>"])
    made.post_processor = template
    with pytest.raises(UserError, match="at most 100 tokens a character from a tokenizer; received 102 for 1 char"):
        Tokenizer(made.to_str())


@pytest.mark.parametrize("text", [pieces(), byte_level()], ids=["pieces", "bytes"])
def test_usual_ones_are_taken(text: str) -> None:
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


def test_no_text_and_no_tokens() -> None:
    text: Any = Tokenizer(letters())
    for call, argument in ((text.encode, 3), (text.decode, "ab"), (text.decode, [-1]), (text.encode_documents, [b"a"])):
        with pytest.raises(UserError):
            call(argument)

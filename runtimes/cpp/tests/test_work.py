"""Work and memory of tokenizers, counted: twice the text is twice the steps; memory is in proportion to the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cpp_build import CHECKED, Run, build
from made_tokenizers import added_token, bpe, fallback, storyteller, unigram


@pytest.fixture(scope="session")
def counted() -> Path:
    """The program, with a library in which every basic block is counted."""
    optimized = "-DCMAKE_CXX_FLAGS=-O1"  # the bounds are of its steps
    return build("steps", "-DT2R_SANITIZE=steps", *CHECKED, optimized, targets=["steps"]) / "steps"


Count = Callable[..., dict[str, int]]


@pytest.fixture
def count(counted: Path, run: Run, tmp_path: Path) -> Count:
    """Steps and bytes of opening a tokenizer, encoding a text, decoding its tokens, and streaming them."""

    def counts(source: str, text: str, stops: Sequence[str] = ()) -> dict[str, int]:
        (tmp_path / "tokenizer").write_text(source, "utf-8")
        (tmp_path / "text").write_text(text, "utf-8")
        found = run(counted, tmp_path / "tokenizer", tmp_path / "text", *stops).stdout.split()
        names = [f"{unit} {call}" for call in ("open", "encode", "decode", "stream") for unit in ("steps", "bytes")]
        return dict(zip(names, map(int, found), strict=True))

    return counts


def _added(contents: list[str], **flags: bool) -> str:
    vocab = bpe()["model"]["vocab"]
    new = {content: len(vocab) + i for i, content in enumerate(c for c in contents if c not in vocab)}
    known = vocab | new
    tokens = [added_token(content, known[content], **flags) for content in contents]
    return json.dumps(bpe() | {"added_tokens": tokens})


def _part(name: str, **part: Any) -> str:
    return json.dumps(bpe() | {name: part})


def _regex(regex: str) -> str:
    return _part("pre_tokenizer", type="Split", pattern={"Regex": regex}, behavior="Isolated")


def _nested(count: int) -> str:
    """A Unigram model of `count` pieces, each of which begins with all shorter ones."""
    pieces = [["<unk>", 0], *(["a" * size, -float(size)] for size in range(1, count + 1))]
    return json.dumps({"model": {"type": "Unigram", "unk_id": 0, "vocab": pieces}})


def _letters(count: int) -> list[str]:
    return [f"a{chr(0x100 + number % 250)}{chr(0x100 + number // 250)}" for number in range(count)]


BLANKS, ROWS = {"Regex": "^ +| +$"}, {"Regex": " {2,}"}
WORK: dict[str, tuple[Callable[[], str], str]] = {
    "storyteller": (storyteller, "Once upon a time, 12 girls don't é "),
    "one word": (storyteller, "a"),
    "characters and bytes": (fallback, "Once upon a time, 12 日本 "),
    "unigram": (lambda: unigram(byte_fallback=True), "Once upon a time, 12 日本 "),
    "one word, unigram": (lambda: unigram(byte_fallback=False), "a"),
    "nested pieces": (lambda: _nested(64), "a"),
    "merges": (lambda: json.dumps(bpe() | {"model": many_a(), "added_tokens": []}), "a"),
    "lstrip": (lambda: _added(["x"], lstrip=True), "x "),
    "lstrip in blanks": (lambda: _added(["  x"], lstrip=True), " " * 50),
    "rstrip": (lambda: _added([" "], rstrip=True), " "),
    "single word": (lambda: _added(["x"], single_word=True, lstrip=True), " xx"),
    "long added tokens": (lambda: _added(["a", "a" * 1000 + "b"]), "a"),
    "many added tokens on a letter": (lambda: _added(_letters(60_000)), "a"),
    "normalized added tokens": (lambda: _added(["x", "yx"], normalized=True, lstrip=True), "x y"),
    "blanks at edges": (lambda: _part("normalizer", type="Replace", pattern=BLANKS, content=""), " x" + " " * 30),
    "rows of blanks": (lambda: _part("normalizer", type="Replace", pattern=ROWS, content="_"), " x  "),
    "a split at blanks": (lambda: _part("pre_tokenizer", type="Split", pattern=BLANKS, behavior="Isolated"), " "),
    "blanks to no end of a line": (lambda: _regex(r"\s+$"), " "),
    "capitals": (lambda: _regex(r"\p{L}?\p{Lu}*\p{Ll}+|\p{L}?\p{Lu}+\p{Ll}*"), "A"),
    "no end of a line": (lambda: _regex(r"\s*[\r\n]+|\s+(?!\S)|\s"), " x" + " " * 30),
    "strip": (lambda: _part("normalizer", type="Strip", strip_left=True, strip_right=True), " "),
    "digits": (lambda: _part("pre_tokenizer", type="Digits", individual_digits=False), "1a"),
    "metaspaces": (lambda: _part("pre_tokenizer", type="Sequence", pretokenizers=metaspaces()), "a "),
    "a literal that almost matches": (
        lambda: _part("normalizer", type="Replace", pattern={"String": "a" * 90 + "b"}, content=""),
        "a",
    ),
}
# streams of these return no text, or never all of it
HELD: dict[str, tuple[Callable[[], str], str]] = {
    "special tokens": (lambda: _added(["x"], special=True), "x"),
    "tokens without text": (lambda: _part("decoder", type="Replace", pattern={"String": "a"}, content=""), "a"),
    "characters across tokens": (lambda: json.dumps(across()), "日"),
}


def many_a() -> dict[str, Any]:
    """Pieces of 1, 2, 4 … 64 "a"s, each merged from two halves."""
    sizes = [1 << exponent for exponent in range(7)]
    vocab = {"a" * size: number for number, size in enumerate(sizes)}
    return {"type": "BPE", "vocab": vocab, "merges": [f"{'a' * size} {'a' * size}" for size in sizes[:-1]]}


def across() -> dict[str, Any]:
    """Tokens of bytes of which each ends within 日, but the last of a text."""
    model = {"type": "BPE", "vocab": {"æ": 0, "Ĺ": 1, "¥": 2, "Ĺ¥": 3, "Ĺ¥æ": 4}, "merges": ["Ĺ ¥", "Ĺ¥ æ"]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {"model": model, "pre_tokenizer": byte_level, "decoder": byte_level, "added_tokens": []}


def metaspaces() -> list[dict[str, Any]]:
    return [{"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True} for mark in "▁_"]


@pytest.mark.parametrize("name", WORK)
def test_twice_the_text_is_twice_the_work(count: Count, name: str) -> None:
    make, unit = WORK[name]
    source, size = make(), 200_000 // len(unit)
    once, twice = count(source, unit * size), count(source, unit * 2 * size)
    for call in ("encode", "decode", "stream"):
        assert twice[f"steps {call}"] <= 2.2 * once[f"steps {call}"], (once, twice)
        assert once[f"steps {call}"] <= 3000 * len(unit) * size, once  # so that no constant hides quadratic work


@pytest.mark.parametrize("name", HELD)
def test_work_of_a_streamed_token_is_bounded(count: Count, name: str) -> None:
    make, unit = HELD[name]
    once, twice = (count(make(), unit * size)["steps stream"] for size in (2000, 4000))
    assert twice <= 2.2 * once


@pytest.mark.parametrize("name", WORK)
def test_memory_of_one_long_text(count: Count, name: str) -> None:
    """Tokens, of 8 bytes each, are counted too; the worst text has one token per character."""
    make, unit = WORK[name]
    text = unit * (2_000_000 // len(unit))
    found, size = count(make(), text), len(text.encode())
    assert found["bytes encode"] <= 40 * size, found
    assert found["bytes decode"] <= 12 * size, found


def test_added_tokens_cost_what_they_are(count: Count) -> None:
    """Many added tokens with a common prefix are opened in time linear in their characters."""
    once, twice = (count(_added(_letters(size)), "a")["steps open"] for size in (10_000, 20_000))
    assert twice <= 2.3 * once


def test_long_stop_texts_cost_what_short_ones_do(count: Count) -> None:
    """One of them holds back hundreds of bytes, which begin none of the others."""
    steps = [
        count(storyteller(), ("a" * 900 + "b") * 20, [letter * size for letter in "acdefgh"])["steps stream"]
        for size in (2, 1000)
    ]
    assert steps[1] <= 2 * steps[0]


def test_a_square_is_seen(count: Count) -> None:
    """The counts detect quadratic work: pieces as long as the text are looked up at each of its characters."""
    once, twice = (count(_nested(size), "a" * size)["steps encode"] for size in (125, 250))
    assert twice > 3.2 * once

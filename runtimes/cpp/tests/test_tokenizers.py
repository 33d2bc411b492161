"""Tokenizers compared with the tokenizers library: 10,000 random texts each; the contract's parts; refusals."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from cpp_build import ROOT
from made_tokenizers import WORDS, bpe, fallback, gpt2, parts, storyteller, unigram
from random_texts import texts
from t2r_library import Failed, Library, Tokenizer

from t2r_runtime import Tokenizer as Python

# fewer under a sanitizer or with counters, which need few texts
MANY, SOME = (1_000, 100) if "T2R_LIBRARY" in os.environ else (10_000, 1_000)
if "T2R_COUNTED" in os.environ:
    MANY, SOME = 60, 30


def compare(library: Library, source: str, count: int, seed: int = 1) -> None:
    """Compare encoding and decoding of `count` random texts, and decoding of random tokens."""
    theirs, ours = tokenizers.Tokenizer.from_str(source), Tokenizer(library, source, bos_token=0)
    theirs.no_truncation()
    theirs.no_padding()
    size, chance = theirs.get_vocab_size(), random.Random(seed)
    words = [theirs.decode([token]) or "x" for token in range(size)]
    for text in texts(seed, count, words):
        wanted = theirs.encode(text).ids or [0]
        assert ours.encode(text) == wanted, text
        assert ours.encode(text, special=False) == (theirs.encode(text, add_special_tokens=False).ids or [0]), text
        for tokens in (wanted, [chance.randrange(size) for _ in range(chance.randrange(8))]):
            assert ours.decode(tokens) == theirs.decode(tokens), tokens
    ours.close()


def test_storyteller(library: Library) -> None:
    compare(library, storyteller(), MANY)


def test_sentencepiece_bytes(library: Library, data: Path) -> None:
    compare(library, (data / "checkpoints" / "stories260K" / "tokenizer.json").read_text("utf-8"), MANY)


def test_gpt2(library: Library, data: Path) -> None:
    compare(library, gpt2(data), MANY)


def test_unigram(library: Library) -> None:
    compare(library, unigram(byte_fallback=False), MANY)


def test_surfaces(library: Library) -> None:
    """Runs of unknown characters, and pieces, that `surfaces` has, as in Python."""
    vocab = [["<unk>", 0], ["a", -1], ["b", -2], ["\uffff \u00a3", -2], ["\uffff \u8881\u9e20", -2], ["ab", -1.5]]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "surfaces": {"\u00a3": 3, "\u8881\u9e20": 4, "ab": 0}}
    text, tokens = "a\u00a3b\u00a3\u00a3ba\u8881\u9e20aba\u8881", [1, 3, 2, 0, 2, 1, 4, 0, 1, 0]
    ours = Tokenizer(library, json.dumps({"model": model}), bos_token=0)
    assert ours.encode(text) == Python(json.dumps({"model": model})).encode(text) == tokens
    ours.close()
    for surfaces in ({"\u00a3": 6}, {"\u00a3": -1}, {"\u00a3": "3"}):
        with pytest.raises(Failed, match="tokenizer"):
            Tokenizer(library, json.dumps({"model": {**model, "surfaces": surfaces}}), bos_token=0)


def test_unigram_with_bytes(library: Library) -> None:
    compare(library, unigram(byte_fallback=True), SOME)


@pytest.mark.parametrize("name", parts())
def test_part(library: Library, name: str) -> None:
    compare(library, json.dumps(bpe() | parts()[name]), SOME)


MARKS = [
    0x300,
    0x301,
    0x307,
    0x315,
    0x31B,
    0x323,
    0x327,
    0x328,
    0x334,
    0x338,
    0x345,
    0x35C,
    0x591,
    0x5B0,
    0x93C,
    0x3099,
]
JOINED = [
    0x1100,
    0x1161,
    0x11A7,
    0x11A8,
    0x11C2,
    0xAC00,
    0xAC01,
    0x9C7,
    0x9BE,
    0x9D7,
    0xDD9,
    0xDCA,
    0xDDC,
    0x1E9B,
    0xFDFA,
]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalization_form(library: Library, form: str) -> None:
    """The form's bytes for every character, alone and beside others, and for marks in any order."""
    source = json.dumps(json.loads(fallback()) | {"normalizer": {"type": form}})
    theirs, ours = tokenizers.Tokenizer.from_str(source), Tokenizer(library, source, bos_token=0)
    every = [chr(code) for code in range(0, 0x110000, 5 if MANY == 60 else 1) if not 0xD800 <= code < 0xE000]
    runs = [every[first : first + 512] for first in range(0, len(every), 512)]
    chance = random.Random(5)
    letters = [*map(chr, MARKS), *map(chr, JOINED), *"aAeo", *(c for c in every[:0x3400] if c != c.casefold())]
    mixed = ["".join(chance.choices(letters, k=chance.randrange(1, 9))) for _ in range(MANY)]
    for text in [
        *("x".join(run) for run in runs),
        *("".join(run) for run in runs),
        *mixed,
        "a" + "\u0327\u0301" * 50_000,
    ]:
        assert ours.encode(text, special=False) == (theirs.encode(text, add_special_tokens=False).ids or [0]), text[:50]
    ours.close()


@pytest.mark.parametrize(
    "change, named",
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "model WordPiece"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}}, "dropout"),
        ({"normalizer": {"type": "BertNormalizer"}}, "normalizer BertNormalizer"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+"}, "content": ""}}, "(a+)+"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "pre-tokenizer UnicodeScripts"),
        ({"decoder": {"type": "WordPiece"}}, "decoder WordPiece"),
        ({"post_processor": {"type": "BertProcessing"}}, "post-processor BertProcessing"),
    ],
)
def test_refused_by_name(library: Library, change: dict[str, Any], named: str) -> None:
    with pytest.raises(Failed, match="tokenizer: expected") as failed:
        Tokenizer(library, json.dumps(bpe() | change))
    assert named in failed.value.line


def many_merges(count: int) -> str:
    """A merge for every pair of `count` texts."""
    names = [f"{i:x}" for i in range(count)]
    vocab = {name: i for i, name in enumerate(dict.fromkeys([*names, *(a + b for a in names for b in names)]))}
    pairs = ",".join(f'"{a} {b}"' for a in names for b in names)
    return f'{{"model":{{"type":"BPE","vocab":{json.dumps(vocab, separators=(",", ":"))},"merges":[{pairs}]}}}}'


@pytest.mark.parametrize(
    "source",
    [
        lambda: "",
        lambda: "{}",
        lambda: "[" * 10_000 + "]" * 10_000,
        lambda: '{"model":' * 10_000,
        lambda: '{"normalizer":' + '{"type":"Sequence","normalizers":[' * 10_000,
        lambda: '{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}',  # a cycle: "aa" is not in the vocabulary
        lambda: '{"model":{"type":"BPE","vocab":{"a":4294967296},"merges":[]}}',
        lambda: '{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}',
        lambda: '{"model":{"type":"Unigram","vocab":[]}}',
        lambda: '{"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":7}}',
        lambda: '{"model":{"type":"BPE","vocab":{"\\ud800":0},"merges":[]}}',
        lambda: json.dumps(bpe() | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}),
        lambda: " " * (1 << 24) + "{}",
    ],
)
def test_bad_tokenizers(library: Library, source: Callable[[], str]) -> None:
    with pytest.raises(Failed, match="^tokenizer: expected"):
        Tokenizer(library, source())


def test_many_merges(library: Library) -> None:
    """A million rules exceed the bound of a tokenizer's text, which is an error; a quarter of them works."""
    with pytest.raises(Failed, match="^tokenizer: expected"):
        Tokenizer(library, many_merges(1000))
    assert Tokenizer(library, many_merges(500)).encode("1f3")


def _bounds() -> Any:
    """The Python runtime's own test of the contract's table."""
    path = ROOT / "tests" / "runtime" / "test_tokenizer_bounds.py"
    spec = importlib.util.spec_from_file_location("tokenizer_bounds_of_python", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BOUNDS = _bounds()


@pytest.mark.parametrize("name", BOUNDS.BOUNDS)
def test_bounds(library: Library, name: str) -> None:
    """A tokenizer at each bound of the contract opens, and one past it is refused."""
    within, past = BOUNDS.BOUNDS[name]
    Tokenizer(library, BOUNDS.with_parts(**within)).close()
    with pytest.raises(Failed, match="^tokenizer: expected"):
        Tokenizer(library, BOUNDS.with_parts(**past))


def test_text_that_multiplies(library: Library) -> None:
    """Parts that each multiply the output of the one before."""
    more = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
    several = [{"type": "Sequence", "normalizers": [more] * count} for count in (3, 4)]
    made = Tokenizer(library, json.dumps(bpe() | {"normalizer": several[0]}))
    with pytest.raises(Failed, match="at most 64 MiB of text"):
        made.encode("a" * (1 << 15))
    with pytest.raises(Failed, match="at most 4096 bytes for one from a normalizer; received 65536"):
        Tokenizer(library, json.dumps(bpe() | {"normalizer": several[1]}))


def test_a_text_costs_a_unigram_the_bytes_of_its_longest_piece(library: Library) -> None:
    """With pieces of 256 bytes, a text may grow 4 times, and a short one to 64 KiB."""
    model = BOUNDS.unigram("b", *("a" * size for size in range(1, 257)))
    grows = BOUNDS.sequence(*[BOUNDS.replace("a", "aa")] * 5)
    made = Tokenizer(library, BOUNDS.with_parts(model=model, normalizer=grows))
    assert len(made.encode("a" * 2048)) == 256
    assert len(made.encode("a" * 3000 + "b" * 29_000)) == 376
    for text in ("a" * 2049, "a" * 32_768):
        with pytest.raises(Failed, match="^tokenizer: expected a text that grows less in this tokenizer"):
            made.encode(text)


def test_bad_texts(library: Library) -> None:
    made = Tokenizer(library, json.dumps(bpe()))
    for text in (b"\xff", b"\xed\xa0\x80", b"a\xc3", b"\xf8\x88\x80\x80\x80"):
        with pytest.raises(Failed, match="text in UTF-8"):
            made.encode(text)
    with pytest.raises(Failed, match="BOS"):
        made.encode("")


def streamed(tokenizer: Any, prompt: list[int], tokens: list[int]) -> Iterator[str]:
    from t2r_runtime.text.tokenizer import StreamingDetokenizer

    stream = StreamingDetokenizer(tokenizer, prompt)
    yield from (stream.feed(token) for token in tokens)
    yield stream.end()


@pytest.mark.parametrize("make", [storyteller, fallback, lambda: unigram(byte_fallback=True)])
def test_streams(library: Library, make: Callable[[], str]) -> None:
    """Pieces equal those of the Python runtime; joined, they equal the text of decode."""
    from t2r_runtime import Tokenizer as Python

    source = make()
    theirs, ours = Python(source, bos_token=0), Tokenizer(library, source, bos_token=0)
    chance, size = random.Random(3), tokenizers.Tokenizer.from_str(source).get_vocab_size()
    for text in texts(4, 300, WORDS):
        tokens = ours.encode(text, special=False) + [chance.randrange(size) for _ in range(chance.randrange(4))]
        cut = chance.randrange(len(tokens)) if chance.random() < 0.5 else 0
        pieces = ours.stream(tokens[:cut], tokens[cut:])
        assert pieces == list(streamed(theirs, tokens[:cut], tokens[cut:])), tokens
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-2] if not piece.startswith("\ufffd")), tokens
        if make is storyteller and cut == 0:
            assert "".join(pieces) == ours.decode(tokens)

"""Each row of the contract's table of tokenizer bounds: the bound itself is accepted, one more is refused."""

from __future__ import annotations

import base64
import json
import re
import resource
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import normalizers

from contract_pages import PAGES
from t2r_runtime import Tokenizer, UserError
from t2r_runtime.text import tokenizer_bounds as bounds
from t2r_runtime.text.tokenizer_file import FREE_WORK, MAX_TEXT, MAX_WORK
from t2r_runtime.text.tokenizer_parts import MAX_PARTS

PAGE = PAGES["text"]
LETTERS = {letter: number for number, letter in enumerate("abcde")}
MARK = "\N{LOWER ONE EIGHTH BLOCK}"


def bpe(vocab: dict[str, Any]) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocab, "merges": []}


def unigram(*pieces: str) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]}


def with_parts(**parts: Any) -> str:
    """A tokenizer of five letters with these parts."""
    return json.dumps({"version": "1.0", "model": bpe(LETTERS), **parts})


def added(*contents: str, first: int = len(LETTERS), **flags: bool) -> list[dict[str, Any]]:
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": first + n, "content": content, **no, **flags} for n, content in enumerate(contents)]


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: dict[str, Any], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: list(parts)}


def template(texts: int, *ids: int) -> dict[str, Any]:
    form = [{"Sequence": {"id": "A", "type_id": 0}}] * texts + [{"SpecialToken": {"id": "a", "type_id": 0}}]
    special = {"a": {"id": "a", "ids": list(ids), "tokens": ["a"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": form, "pair": PAIR, "special_tokens": special}


def charsmap(longest: int) -> dict[str, Any]:
    raw = struct.pack("<I", 1024) + bytes(1024) + b"x\0" + b"a" * longest + b"\0y\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def numbered(count: int) -> list[str]:
    return [f"<{number}>" for number in range(count)]


def metaspace(mark: str = MARK, scheme: str = "always") -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": True}


PAIR = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
NFC = {"type": "NFC"}
SPACES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BYTES = {**SPACES, "add_prefix_space": False}
STRIP = {"type": "Strip", "content": "a", "start": 0, "stop": 1}
# bound -> at the bound, past it
BOUNDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ids of a vocabulary": (
        {"model": bpe({"a": 0, "b": bounds.MAX_ID})},
        {"model": bpe({"a": 0, "b": bounds.MAX_ID + 1})},
    ),
    "ids below 0": ({"model": bpe({"a": 0, "b": 1})}, {"model": bpe({"a": 0, "b": -1})}),
    "ids of a template": (
        {"post_processor": template(1, bounds.MAX_ID)},
        {"post_processor": template(1, bounds.MAX_ID + 1)},
    ),
    "one id for two pieces": ({"model": bpe({"a": 0, "b": 2})}, {"model": bpe({"a": 0, "b": 0})}),
    "a piece": ({"model": bpe({"a": 0, "b" * 4096: 1})}, {"model": bpe({"a": 0, "b" * 4097: 1})}),
    "bytes of a piece": ({"model": bpe({"a": 0, "é" * 2048: 1})}, {"model": bpe({"a": 0, "é" * 2049: 1})}),
    "a piece of a Unigram": ({"model": unigram("a", "b" * 256)}, {"model": unigram("a", "b" * 257)}),
    "added tokens": ({"added_tokens": added(*numbered(1 << 16))}, {"added_tokens": added(*numbered(65_537))}),
    "a content": ({"added_tokens": added("é" * 512)}, {"added_tokens": added("é" * 513)}),
    "a normalized content": (
        {"added_tokens": added("f" * 512, normalized=True), "normalizer": replace("f", "gg")},
        {"added_tokens": added("f" * 513, normalized=True), "normalizer": replace("f", "gg")},
    ),
    "all contents": (
        {"added_tokens": added(*(f"{n:04}" + "f" * 1016 for n in range(4096)))},
        {"added_tokens": added(*(f"{n:04}" + "f" * 1020 for n in range(4097)))},
    ),
    "all contents, normalized": (
        {
            "added_tokens": added(*(f"{n:04}" for n in range(256)), normalized=True),
            "normalizer": replace("f", "f" * 256),
        },
        {
            "added_tokens": added(*(f"{n:04}" for n in range(8000)), normalized=True),
            "normalizer": replace("f", "f" * 256),
        },
    ),
    "another id of a piece": ({"added_tokens": added("b", first=1)}, {"added_tokens": added("b", first=2)}),
    "a gap before an added token": ({"added_tokens": added("f", first=5)}, {"added_tokens": added("f", first=6)}),
    "the id of another piece": (
        {"model": bpe({"a": 0, "b": 1}), "added_tokens": added("f", first=2)},
        {"model": bpe({"a": 0, "b": 2}), "added_tokens": added("f", first=2)},
    ),
    "parts": ({"normalizer": sequence(*[NFC] * 4)}, {"normalizer": sequence(*[NFC] * MAX_PARTS)}),
    "empty sequences": (
        {"normalizer": sequence(*[sequence()] * (MAX_PARTS - 1))},
        {"normalizer": sequence(*[sequence()] * MAX_PARTS)},
    ),
    "a part without a type": ({"normalizer": {"type": "Prepend", "prepend": "x"}}, {"normalizer": {"prepend": "x"}}),
    "an empty pattern": ({"normalizer": replace("x", "a")}, {"normalizer": replace("", "a")}),
    "a pattern": ({"normalizer": replace("é" * 128, "a")}, {"normalizer": replace("é" * 129, "a")}),
    "a content of a Replace": ({"normalizer": replace("a", "b" * 256)}, {"normalizer": replace("a", "b" * 257)}),
    "what is prepended": (
        {"normalizer": {"type": "Prepend", "prepend": "b" * 256}},
        {"normalizer": {"type": "Prepend", "prepend": "b" * 257}},
    ),
    "what a Split looks for": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a" * 256}, "behavior": "Isolated", "invert": False}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a" * 257}, "behavior": "Isolated", "invert": False}},
    ),
    "one character of a Strip": ({"decoder": STRIP}, {"decoder": {**STRIP, "content": "ab"}}),
    "growth by texts": (
        {"normalizer": sequence(*[replace("a", "aa")] * 12)},
        {"normalizer": sequence(*[replace("a", "aa")] * 13)},
    ),
    "growth by a long pattern": (
        {"normalizer": sequence(*[replace("aa", "aaaa")] * 12)},
        {"normalizer": sequence(*[replace("aa", "aaaa")] * 13)},
    ),
    "growth by a regular expression": (
        {"normalizer": sequence(*[replace(" {2,}", "a" * 64, "Regex")] * 2)},
        {"normalizer": sequence(*[replace(" {2,}", "a" * 65, "Regex")] * 2)},
    ),
    "growth by what is prepended": (
        {"normalizer": sequence({"type": "Prepend", "prepend": "b" * 15}, replace("b", "c" * 256))},
        {"normalizer": sequence({"type": "Prepend", "prepend": "b" * 16}, replace("b", "c" * 256))},
    ),
    "growth by normal forms": (
        {"normalizer": sequence(*[{"type": "NFKC"}] * 3, NFC)},
        {"normalizer": sequence(*[{"type": "NFKD"}] * 3, NFC, {"type": "NFD"})},
    ),
    "growth by a charsmap": (
        {"normalizer": sequence(charsmap(16), replace("a", "b" * 256))},
        {"normalizer": sequence(charsmap(17), replace("a", "b" * 256))},
    ),
    "in sequences of sequences": (
        {"normalizer": sequence(*[sequence(replace("a", "a" * 64))] * 2)},
        {"normalizer": sequence(*[sequence(replace("a", "a" * 64))] * 3)},
    ),
    "growth of a Metaspace": (
        {"pre_tokenizer": sequence(metaspace(), metaspace(), name="pretokenizers")},
        {"pre_tokenizer": sequence(*[metaspace()] * 3, name="pretokenizers")},
    ),
    "growth of a Metaspace without a start": (
        {"pre_tokenizer": sequence(*[metaspace(scheme="never")] * 3, name="pretokenizers")},
        {"pre_tokenizer": sequence(*[metaspace(scheme="never")] * 4, name="pretokenizers")},
    ),
    "growth of bytes with a space": (
        {"pre_tokenizer": sequence(*[SPACES] * 3, name="pretokenizers")},
        {"pre_tokenizer": sequence(*[SPACES] * 4, name="pretokenizers")},
    ),
    "growth of bytes": (
        {"pre_tokenizer": sequence(*[BYTES] * 6, name="pretokenizers")},
        {"pre_tokenizer": sequence(*[BYTES] * 7, name="pretokenizers")},
    ),
    "growth of a decoder": (
        {"decoder": sequence(*[replace("a", "aa")] * 6, name="decoders")},
        {"decoder": sequence(*[replace("a", "aa")] * 7, name="decoders")},
    ),
    "growth of a decoder of bytes": (
        {"decoder": sequence(BYTES, replace("a", "a" * 21), name="decoders")},
        {"decoder": sequence(BYTES, replace("a", "a" * 22), name="decoders")},
    ),
    "ids that are inserted": (
        {"post_processor": template(1, *[0] * 256)},
        {"post_processor": template(1, *[0] * 257)},
    ),
    "ids of all templates": (
        {"post_processor": sequence(*[template(1, *[0] * 128)] * 2, name="processors")},
        {"post_processor": sequence(*[template(1, *[0] * 128)] * 3, name="processors")},
    ),
    "a text twice": ({"post_processor": template(1, 0)}, {"post_processor": template(2, 0)}),
    "no text": ({"post_processor": template(1, 0)}, {"post_processor": template(0, 0)}),
}


@pytest.fixture
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", BOUNDS)
def test_integer_option_bounds(name: str, little_memory: None) -> None:
    taken, refused = (with_parts(**parts) for parts in BOUNDS[name])
    assert Tokenizer(taken).encode("ab")
    with pytest.raises(UserError) as caught:
        Tokenizer(refused)
    assert caught.value.kind == "tokenizer"
    assert "\n" not in str(caught.value)


def test_the_contract_has_these_numbers() -> None:
    table = PAGE.split("### Bounds of a tokenizer\n")[1].split("| part | growth |")[0]
    bytes_of = {"MiB": 1 << 20}
    said = {1 << 24} if "2²⁴ - 1" in table else set()
    for number, unit in re.findall(r"(\d[\d,]*)( MiB)?", table):
        said.add(int(number.replace(",", "")) * bytes_of.get(unit.strip(), 1))
    named = {bounds.MAX_PIECE, bounds.MAX_UNIGRAM_PIECE, bounds.MAX_ADDED, bounds.MAX_ADDED_BYTES, MAX_TEXT, MAX_PARTS}
    named |= {bounds.MAX_ADDED_TOTAL, bounds.MAX_INSERTED, bounds.MAX_INSERTED_IDS, *bounds.MAX_GROWTH.values()}
    named |= {bounds.MERGING, MAX_WORK, FREE_WORK}
    assert {*named, bounds.MAX_ID + 1} <= said


def test_added_token_growth_limit(little_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 0.65 MB file that the library would expand to 4 GB while opening it."""
    text = with_parts(
        added_tokens=added(*(f"{n:04}" + "a" * 196 for n in range(2000)), normalized=True),
        normalizer=sequence(replace("a", "b" * 100), replace("b", "c" * 100)),
    )
    monkeypatch.setattr("tokenizers.Tokenizer", None)
    with pytest.raises(UserError, match="expected at most 4,096 bytes for one from a normalizer; received 10,000"):
        Tokenizer(text)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer", "ByteLevel"])
def test_growth_table(form: str) -> None:
    grown = getattr(normalizers, form)().normalize_str
    most = bounds.GROWTH["normalizer", form]
    sample = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    assert max(len(grown(c).encode()) / len(c.encode()) for c in sample) <= most


IDS: list[list[dict[str, Any]]] = [
    added("x", "y"),
    [*added("b", first=1), *added("x", "y")],
    [*added("x"), *added("b", first=1), *added("x", "y")],
    [*added("x"), *added("", first=9), *added("y", first=6)],
]


@pytest.mark.parametrize("entries", IDS)
def test_added_token_ids(entries: list[dict[str, Any]]) -> None:
    text = with_parts(added_tokens=entries)
    Tokenizer(text)
    library = Library.from_str(text)
    assert all(library.token_to_id(e["content"]) == e["id"] for e in entries if e["content"])


def test_text_growth_limit(little_memory: None) -> None:
    grows = sequence(*[replace("a", "aa")] * 12)
    made = Tokenizer(with_parts(normalizer=grows))
    assert len(made.encode("b" * 50_000)) == 50_000
    with pytest.raises(
        UserError, match="makes at most 3,200,000 bytes; received 3,407,872 or more of 50,000;"
    ) as caught:
        made.encode("a" * 50_000)
    assert caught.value.kind == "tokenizer"
    with pytest.raises(UserError, match="at most 3,200,000 bytes"):
        made.encode_documents(["b", "a" * 50_000])


def test_unigram_work_limit() -> None:
    """With pieces of 256, a text may grow 4 times, and a short one to 64 KiB."""
    model = unigram("b", *("a" * size for size in range(1, 257)))
    made = Tokenizer(with_parts(model=model, normalizer=sequence(*[replace("a", "aa")] * 5)))
    assert len(made.encode("a" * 2048)) == 256
    assert len(made.encode("a" * 3000 + "b" * 29_000)) == 376  # a run of unknown letters is one token
    with pytest.raises(UserError, match="at most 65,536 bytes; received 65,568 or more of 2,049;"):
        made.encode("a" * 2049)
    with pytest.raises(UserError, match="makes at most 131,072 bytes"):
        made.encode("a" * 32_768)


def test_decoded_text_size_limit(little_memory: None) -> None:
    model = bpe({"a" * 4096: 0, "b": 1})
    grown = Tokenizer(with_parts(model=model, decoder=sequence(*[replace("a", "aa")] * 6, name="decoders")))
    assert len(grown.decode([0, 1])) == 4096 * 64 + 1
    with pytest.raises(UserError, match="expected at most 256 tokens, some of which are long; received 257"):
        grown.decode([0] * 257)
    assert len(Tokenizer(with_parts(model=model)).decode([1] * 100_000)) == 199_999

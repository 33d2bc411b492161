"""Tokenizers of the parts that the three of texts.py lack, and texts that distinguish each part from another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

from golden import vocabularies
from golden.models import SMALLEST, seeded
from golden.texts import Case, strings
from t2r_export.export import export
from t2r_runtime import Tokenizer

TEXTS = 60
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# merges across a cut: of endings, digits, punctuation and spaces, in byte-level characters
MERGES = ("' S", "' T", "' s", "Ġ 1", "1 2", "3 4", "12 34", ". Ċ", "Ċ Ċ", "Ġ Ġ", "Ġ .", "! !", "a .", "a 1", "1 a") + (
    "Ġ a",
    ". a",
    "x -",
    "a x",
)
WORDS = (
    "a",
    "x",
    "12",
    "1234",
    "12345",
    ".",
    "!!",
    "-",
    "'S",
    "'T",
    "'s",
    "\n",
    "\n\n",
    " ",
    "  ",
    " 1",
    "a1",
    "1a",
    "ax",
) + (
    "½",
    "\u00e9",
    "e\u0301",
    "ﬁ",
    "①",
    "²",
    "  <l>",
    "<r>  ",
)
MARKS = ("<l>", "<r>", "<w>", "\u00c9t", "<s>", "</s>", "E\u0301t")


def words() -> dict[str, Any]:
    """Right strip and NFC; cut as by GPT-4, at most three digits; <s> and </s> as by RoBERTa."""
    ends = {"sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    cut = split(rf"{ENDINGS}|\p{{N}}{{1,3}}|{REST}")
    return _bytes([strip, {"type": "NFC"}], [cut], {"type": "RobertaProcessing", **ends})


def digits() -> dict[str, Any]:
    """NFD; single digits, punctuation merged with what follows."""
    cuts = [split(rf"{ENDINGS}|\p{{N}}|{REST}"), {"type": "Punctuation", "behavior": "MergedWithNext"}]
    return _bytes([{"type": "NFD"}], cuts)


def signs() -> dict[str, Any]:
    """Edge spaces removed, NFKC; cut after a string, at runs of punctuation and of digits."""
    edges = {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}
    cut = {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithPrevious", "invert": False}
    signs = {"type": "Punctuation", "behavior": "Contiguous"}
    return _bytes([edges, {"type": "NFKC"}], [cut, signs, {"type": "Digits", "individual_digits": False}])


def blanks() -> dict[str, Any]:
    """NFKD; cut at whitespace, which is removed, and at each digit; the normalized token is special."""
    cuts = [{"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True}]
    return _bytes([{"type": "NFKD"}], cuts, special=("<l>", "\u00c9t"))


def runs() -> dict[str, Any]:
    """A string replaced; cut into runs of letters and of punctuation, without whitespace."""
    return _bytes([{"type": "Replace", "pattern": {"String": "x"}, "content": "a."}], [{"type": "Whitespace"}])


TOKENIZERS = {"words": words, "digits": digits, "signs": signs, "blanks": blanks, "runs": runs}
SURFACES = {"surfaces": True, "surfaces-bpe": False}  # whether the model is a Unigram
SURFACE_PIECES = ("a", "ab", "b", "x", " ", " a", "£", "££", "袁", "袁鸠", "袁🙂", "🙂", "<s>", "<unk>")


def surfaces(unigram: bool) -> dict[str, Any]:
    """A model with `surfaces`: of unknown runs, of pieces, and of added tokens, one of which is the unknown token."""
    pieces = ["<unk>", "<s>", "\u2581", "a", "b", "\u2581a", "ab", "x", "\uffff £", "\uffff 袁鸠", "\uffff 🙂"]
    ids = {"£": 8, "袁鸠": 9, "🙂": 10, "ab": 0, "\u2581a": 3, "<s>": 7, "<unk>": 7, "袁🙂": 4}
    model: dict[str, Any] = {"type": "Unigram", "unk_id": 0, "byte_fallback": False}
    model |= {"vocab": [[text, -float(n)] for n, text in enumerate(pieces)]}
    if not unigram:
        model = vocabularies.merging(pieces, [["\u2581", "a"], ["a", "b"]]) | {"unk_token": "<unk>", "fuse_unk": True}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "version": "1.0",
        "added_tokens": [{"id": n, "content": text, **flags, "special": True} for n, text in enumerate(pieces[:2])],
        "pre_tokenizer": space,
        "decoder": space,
        "model": model | {"surfaces": ids},
    }


def cases(folder: Path) -> Iterator[Case]:
    """A graph with each tokenizer in it, and its texts."""
    for name, make in TOKENIZERS.items():
        yield case(folder, name, make(), texts(name))
    for name, unigram in SURFACES.items():
        yield case(folder, name, surfaces(unigram), surface_texts(name))


def case(folder: Path, name: str, made: dict[str, Any], texts: Sequence[str]) -> Case:
    tokenizer = json.dumps(made, ensure_ascii=False)
    size = len(made["model"]["vocab"]) + len(made["added_tokens"])
    config = replace(SMALLEST, vocab_size=size, bos_token=0, eos_tokens=(1,))
    export(seeded(name, config, tokenizer), folder / f"{name}.onnx")
    return f"text-{name}", "tokenizer", {"graph": f"{name}.onnx", "texts": encoded(made, texts)}


def encoded(made: dict[str, Any], texts: Sequence[str]) -> list[tuple[str, list[int], str]]:
    """Texts, their tokens and their decoded texts."""
    opened = Tokenizer(json.dumps(made), 0)
    return [(text, ids := opened.encode(text), opened.decode(ids)) for text in texts]


def texts(name: str) -> list[str]:
    """Texts that exercise the parts, and some of all scripts."""
    random = np.random.default_rng(list(f"{name} parts".encode()))
    of_all = [*WORDS, *MARKS]
    found = dict.fromkeys(strings(name)[:TEXTS:3])
    while len(found) < TEXTS:
        found["".join(of_all[i] for i in random.integers(0, len(of_all), random.integers(2, 12)))] = None
    return list(found)


def surface_texts(name: str) -> list[str]:
    """Random texts of the pieces and the unknown runs."""
    random = np.random.default_rng(list(name.encode()))
    runs = (random.integers(0, len(SURFACE_PIECES), random.integers(1, 8)) for _ in range(40))
    return list(dict.fromkeys("".join(SURFACE_PIECES[n] for n in run) for run in runs))


_LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _bytes(
    normalizers: Sequence[Any], cuts: Sequence[Any], processor: Any = None, special: Sequence[str] = ("<l>",)
) -> dict[str, Any]:
    """A byte-level BPE with these parts, and added tokens of every flag."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [pair.split() for pair in MERGES]
    pieces = ["<s>", "</s>", *letters, *("".join(pair) for pair in merges)]
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    given = dict(zip(MARKS, flags, strict=False))
    added = [
        {"id": n, "content": text, **{flag: given[text] == flag for flag in flags}, "special": text in special}
        for n, text in enumerate(given, len(pieces))
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": list(normalizers)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, _LETTERS]},
        "post_processor": processor,
        "decoder": _LETTERS,
        "model": vocabularies.merging(pieces, merges),
    }

"""Tokenizers that each violate one bound of runtimes/contract/text.md, as parts that replace those of a small BPE."""

from __future__ import annotations

from typing import Any

PIECES = {"a": 0, "b": 1, "ab": 2}
MAX_ID = (1 << 24) - 1
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
SPECIAL = {"SpecialToken": {"id": "a", "type_id": 0}}


def _bpe(**vocab: int) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocab, "merges": []}


def _added(*contents: str, first: int = len(PIECES), normalized: bool = False) -> list[dict[str, Any]]:
    return [{"id": first + n, "content": c, "normalized": normalized, **FLAGS} for n, c in enumerate(contents)]


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _nested(count: int) -> dict[str, Any]:
    """A Unigram model in which each run of "a" is a prefix of all longer ones."""
    return {"type": "Unigram", "unk_id": 0, "vocab": [["b", -1.0], *(["a" * n, -1.0] for n in range(1, count + 1))]}


def _sequence(part: dict[str, Any], count: int, name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: [part] * count}


def _template(texts: int, ids: int) -> dict[str, Any]:
    special = {"a": {"id": "a", "ids": [0] * ids, "tokens": ["a"] * ids}}
    form = [TEXT] * texts + [SPECIAL]
    return {"type": "TemplateProcessing", "single": form, "pair": form, "special_tokens": special}


_DOUBLED = _replace("c", "cc")
_METASPACE = {
    "type": "Metaspace",
    "replacement": "\N{LOWER ONE EIGHTH BLOCK}",
    "prepend_scheme": "always",
    "split": True,
}
# a valid tokenizer that must refuse a text
GROWS: dict[str, Any] = {"model": _nested(64), "normalizer": _sequence(_replace("a", "aa"), 12)}
TEXT_PAST = "a" * 65  # each letter becomes 4,096 bytes, with 64 pieces at each byte
PAST: dict[str, dict[str, Any]] = {
    "id": {"model": _bpe(a=0, b=MAX_ID + 1)},
    "id-twice": {"model": _bpe(a=0, b=1, c=1)},
    "id-of-template": {
        "post_processor": {"type": "RobertaProcessing", "cls": ["a", MAX_ID + 1], "sep": ["b", 1], "trim_offsets": True}
    },
    "long-piece": {"model": _bpe(a=0, **{"b" * 4097: 1})},
    "long-unigram-piece": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], ["b" * 257, -1.0]]}},
    "long-added": {"added_tokens": _added("c" * 1025)},
    "long-normalized": {"added_tokens": _added("c" * 513, normalized=True), "normalizer": _DOUBLED},
    "added-growth": {
        "added_tokens": _added(*(f"{n:05}" + "c" * 59 for n in range(20)), normalized=True),
        "normalizer": _sequence(_DOUBLED, 12),
    },
    "added-gap": {"added_tokens": _added("c", first=4)},
    "added-other-id": {"added_tokens": _added("b", first=2)},
    "added-taken-id": {"model": _bpe(a=0, b=2), "added_tokens": _added("c", first=2)},
    "many-parts": {"normalizer": _sequence({"type": "Sequence", "normalizers": []}, 64)},
    "no-type": {"normalizer": {"prepend": "c"}},
    "empty-pattern": {"normalizer": _replace("", "c")},
    "quadratic-pattern": {"pre_tokenizer": _split("a*b|a")},
    "unknown-pattern": {"pre_tokenizer": _split(r"\w+")},
    "long-content": {"normalizer": _replace("c", "d" * 257)},
    "normalizer-growth": {"normalizer": _sequence(_DOUBLED, 13)},
    "pre-tokenizer-growth": {"pre_tokenizer": _sequence(_METASPACE, 3, "pretokenizers")},
    "decoder-growth": {"decoder": _sequence(_DOUBLED, 7, "decoders")},
    "text-twice": {"post_processor": _template(2, 1)},
    "many-inserted": {"post_processor": _template(1, 257)},
}

"""Limits of a tokenizer.json (the table of runtimes/contract/text.md), checked before the library parses it.

A small untrusted tokenizer.json can exhaust memory: normalizers replace one character by many, and the library
normalizes all added tokens when it loads the file.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.tokenizer_parts import DO, FORM, Data, Part, field, parts_of, regex_of, unsupported

MAX_ID = (1 << 24) - 1
MAX_PIECE, MAX_UNIGRAM_PIECE = 1 << 12, 1 << 8  # bytes; Unigram looks up pieces at every byte
MAX_ADDED, MAX_ADDED_BYTES, MAX_ADDED_TOTAL = 1 << 16, 1 << 10, 1 << 22
MAX_INSERTED = 1 << 8  # bytes of a pattern or insertion of a component
MAX_INSERTED_IDS = 1 << 8
MERGING = 16  # work per byte of a BPE, relative to a lookup of one byte by Unigram
MAX_GROWTH = {"normalizer": 1 << 12, "pre_tokenizer": 1 << 6, "decoder": 1 << 6}  # output bytes per input byte
# maximum output bytes per input byte of a component, measured over all of Unicode
GROWTH: dict[tuple[str, str], float] = {
    ("normalizer", "NFC"): 3,
    ("normalizer", "NFD"): 3,
    ("normalizer", "NFKC"): 11,
    ("normalizer", "NFKD"): 11,
    ("normalizer", "Lowercase"): 1.5,  # the rest is supported in Python only, for training
    ("normalizer", "BertNormalizer"): 3,
    ("normalizer", "ByteLevel"): 2,
    ("decoder", "ByteLevel"): 3,
}


@dataclass(frozen=True)
class Bounded:
    """A tokenizer.json within the limits.

    Attributes:
        data: the parsed JSON.
        work: maximum work per input byte: output bytes of normalizer and pre-tokenizer, times `looks`.
        looks: work of the model per byte that reaches it.
        token_bytes: maximum bytes of text per token.
        large: added tokens whose normalized size must be checked.
    """

    data: Data
    work: float
    looks: int
    token_bytes: float
    large: tuple[str, ...]


def bounded(text: str) -> Bounded:
    """Parse a tokenizer.json and check its limits.

    Raises:
        UserError: a limit is exceeded.
        ValueError, RecursionError: not JSON.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise UserError(FORM, f"a {type(data).__name__}", DO, "tokenizer")
    pieces, count, longest = _pieces(field(data, "model", dict))
    parts = {component: parts_of(data, component) for component in (*MAX_GROWTH, "post_processor")}
    for component, most in MAX_GROWTH.items():
        for part in parts[component]:
            _require_short(component, part)
        _require(most, _grown(component, parts[component], 1), f"bytes for one from a {component}")
    added = field(data, "added_tokens", list, [])
    large = _require_added(added, pieces, count, parts["normalizer"])
    _require_templates(parts["post_processor"])
    growth = math.prod(_grown(component, parts[component], 1) for component in ("normalizer", "pre_tokenizer"))
    looks = max(1, longest) if isinstance(data["model"]["vocab"], list) else MERGING
    longest = max([longest, *(_size(entry["content"]) for entry in added)])
    return Bounded(data, growth * looks, looks, _grown("decoder", parts["decoder"], longest), large)


def require_added_size(content: str, normalized: str) -> None:
    """Raise UserError if the normalized content of an added token is too large."""
    _require(MAX_ADDED_BYTES, _size(normalized), f"bytes of the added token {printable(content, 40)}, normalized")


def _pieces(model: Data) -> tuple[Mapping[str, int], int, int]:
    """The ids of all pieces, their number, and the size of the longest in bytes."""
    vocab = field(model, "vocab", (dict, list))
    if isinstance(vocab, list):  # of Unigram: ids are indices
        if not all(isinstance(entry, list) and entry and isinstance(entry[0], str) for entry in vocab):
            raise UserError(FORM, "other pieces than a text and a score each", DO, "tokenizer")
        most, ids = MAX_UNIGRAM_PIECE, {entry[0]: number for number, entry in enumerate(vocab)}
    else:
        most, ids = MAX_PIECE, vocab
        if not set(map(type, vocab.values())) <= {int}:
            raise UserError(FORM, "ids that are no integers", DO, "tokenizer")
        if len(set(vocab.values())) < len(vocab):
            raise UserError("pieces with different ids", "one id for two pieces", DO, "tokenizer")
    _require_ids((min(ids.values()), max(ids.values())) if ids else ())
    longest = max(map(len, map(str.encode, ids)), default=0)
    _require(most, longest, "bytes of a piece")
    return ids, len(vocab), longest


def _require_added(
    entries: Sequence[Any], pieces: Mapping[str, int], count: int, parts: Sequence[Part]
) -> tuple[str, ...]:
    """Check added tokens; returns those whose normalized size must be checked."""
    _require(MAX_ADDED, len(entries), "added tokens")
    total, large, new = 0.0, [], dict[str, int]()
    for entry in entries:
        content, number = field(entry, "content", str), field(entry, "id", int)
        if not content:
            continue
        size = _size(content)
        _require(MAX_ADDED_BYTES, size, "bytes of an added token")
        grown = float(size)
        if entry.get("normalized", not entry.get("special")):
            grown = _grown("normalizer", parts, size)
        if grown > MAX_ADDED_BYTES:
            large.append(content)
        total += grown
        expected = pieces.get(content)
        if expected is None:
            expected = new.setdefault(content, count + len(new))
        if number != expected:
            what = f"the added token {printable(content, 40)}"
            raise UserError(f"{expected} as the id of {what}", printable(str(number), 40), DO, "tokenizer")
    _require(MAX_ADDED_TOTAL, total, "bytes of all added tokens, normalized")
    _require_ids(new.values())
    if not set(new.values()).isdisjoint(pieces.values()):
        raise UserError("tokens with different ids", "one id for a piece and an added token", DO, "tokenizer")
    return tuple(large)


def _require_templates(parts: Sequence[Part]) -> None:
    """Raise UserError if a post-processor repeats or drops the text, or inserts too many ids."""
    inserted: list[Any] = []
    for part in parts:
        if part["type"] == "RobertaProcessing":
            inserted += [field(part, name, list)[-1:] for name in ("cls", "sep")]
        if part["type"] != "TemplateProcessing":
            continue
        single, special = field(part, "single", list), field(part, "special_tokens", dict)
        if sum("Sequence" in piece for piece in single if isinstance(piece, dict)) != 1:
            raise UserError("the text once in a template", "another number of times", DO, "tokenizer")
        for piece in single:
            if "Sequence" not in piece:
                name = field(field(piece, "SpecialToken", dict), "id", str)
                inserted.append(field(field(special, name, dict), "ids", list))
                _require(MAX_INSERTED_IDS, sum(map(len, inserted)), "ids that a post_processor inserts")
    _require(MAX_INSERTED_IDS, sum(map(len, inserted)), "ids that a post_processor inserts")
    _require_ids([number for ids in inserted for number in ids])


def _require_short(component: str, part: Part) -> None:
    """Raise UserError if a pattern or insertion of a component is too long."""
    kind = part["type"]
    texts = {name: part[name] for name in ("content", "prepend", "replacement") if isinstance(part.get(name), str)}
    for name, text in {**texts, "pattern": _pattern(part) or ""}.items():
        _require(MAX_INSERTED, _size(text), f"bytes of the {name} of a {kind}")
    if kind == "Replace" and _pattern(part) == "":
        raise UserError("a pattern of a Replace that is not empty", "an empty one", DO, "tokenizer")
    one = {"Metaspace": "replacement", "Strip": "content"}.get(kind)
    if one is not None and component != "normalizer" and len(texts.get(one, "")) != 1:
        raise UserError(f"one character as the {one} of a {kind}", printable(texts.get(one, ""), 40), DO, "tokenizer")


def _grown(component: str, parts: Sequence[Part], size: float) -> float:
    """Maximum output bytes of the components for `size` input bytes."""
    for part in parts:
        if part["type"] == "Prepend":
            size += _size(field(part, "prepend", str))
        else:
            size *= _growth(component, part)
    return size


def _growth(component: str, part: Part) -> float:
    kind = part["type"]
    if kind == "Replace":
        content, pattern = _size(field(part, "content", str)), _pattern(part)
        if pattern is not None:
            return max(1.0, content / _size(pattern))
        # a regular expression that runtimes do not support may match the empty string, so the content is added
        regex = regex_of(part)
        return 1.0 + content if regex is None or unsupported(regex) else max(1.0, content)
    if kind == "Precompiled":
        return _longest_replacement(field(part, "precompiled_charsmap", str))
    if component == "pre_tokenizer" and kind == "ByteLevel":
        return 2.0 if part.get("add_prefix_space", True) is False else 4.0
    if component == "pre_tokenizer" and kind == "Metaspace":
        mark = _size(field(part, "replacement", str))
        return float(mark if part.get("prepend_scheme") == "never" else 2 * mark)
    return GROWTH.get((component, kind), 1.0)


def _longest_replacement(charsmap: str) -> float:
    raw = base64.b64decode(charsmap)
    trie = 4 + int.from_bytes(raw[:4], "little")
    return max(1.0, *map(len, raw[trie:].split(b"\0"))) if trie < len(raw) else 1.0


def _pattern(part: Part) -> str | None:
    """The string pattern of a component, if it has one."""
    pattern = part.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None


def _size(text: str) -> int:
    return len(text.encode())


def _require_ids(ids: Iterable[Any]) -> None:
    for number in ids:
        if type(number) is not int or not 0 <= number <= MAX_ID:
            raise UserError(f"token ids in 0 … {MAX_ID:,}", printable(repr(number), 40), DO, "tokenizer")


def _require(most: int, number: float, what: str) -> None:
    if not number <= most:
        raise UserError(f"at most {most:,} {what}", f"{number:,.0f}", DO, "tokenizer")

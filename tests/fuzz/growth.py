"""Hostile tokenizers: small files with expensive parts that grow, insert or nest; texts are doubled."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

from fuzz.kinds import kind
from fuzz.runner import SilentlyWrong
from t2r_runtime import Tokenizer
from t2r_runtime.errors import T2RError

LETTERS = "abc \N{LOWER ONE EIGHTH BLOCK}"
ENOUGH = 2.0  # seconds per text
LINEAR = 3.0  # largest time of a text, relative to half of it
TEXTS = ("a", " ", "a ", "<x>", "b" * 7 + " ", "é", "a" + " " * 50)


def _normalizer(chance: random.Random) -> dict[str, Any]:
    look, write = chance.choice("abc "), chance.choice("abc ") * chance.choice((0, 1, 1, 1, 2, 2, 3, 16, 100, 256))
    match chance.randrange(5):
        case 0:
            return {"type": "Prepend", "prepend": write}
        case 1:
            return {"type": chance.choice(("NFC", "NFD", "NFKC", "NFKD"))}
        case 2:
            return {"type": "Replace", "pattern": {"Regex": chance.choice(("^ +| +$", " {2,}"))}, "content": write}
        case _:
            return {"type": "Replace", "pattern": {"String": look * chance.choice((1, 1, 1, 2))}, "content": write}


def _pre_tokenizer(chance: random.Random) -> dict[str, Any]:
    if chance.randrange(3):
        mark = chance.choice(LETTERS)
        return {"type": "Metaspace", "replacement": mark, "prepend_scheme": chance.choice(("always", "first", "never"))}
    return {"type": "ByteLevel", "add_prefix_space": chance.random() < 0.5, "trim_offsets": True, "use_regex": True}


def _sequence(name: str, make: Any, chance: random.Random) -> dict[str, Any]:
    parts = [make(chance) for _ in range(chance.choice((0, 0, 1, 1, 2, 3, 12)))]
    return {"type": "Sequence", name: parts * chance.choice((1, 1, 1, 1, 6))}


def _model(chance: random.Random) -> dict[str, Any]:
    if chance.randrange(2):
        nested = range(1, chance.choice((2, 100, 256, 256, 256)) + 1)
        return {"type": "Unigram", "unk_id": 0, "vocab": [["b", -1.0], *(["a" * n, -1.0] for n in nested)]}
    ids = {letter: number for number, letter in enumerate(LETTERS)}
    if not chance.randrange(12):
        ids["b"] = chance.choice((0, 1 << 24, 1 << 31, -1))
    return {"type": "BPE", "vocab": ids, "merges": []}


@kind
def tokenizer_growth(base: Path, here: Path, chance: random.Random) -> str:
    model = _model(chance)
    flags = {name: chance.random() < 0.5 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    contents = [f"<{number}>" + "a" * chance.choice((0, 200)) for number in range(chance.choice((0, 1, 60, 2000)))]
    first = len(model["vocab"]) + (not chance.randrange(16))
    data = {
        "version": "1.0",
        "added_tokens": [{"id": first + n, "content": content, **flags} for n, content in enumerate(contents)],
        "normalizer": _sequence("normalizers", _normalizer, chance),
        "pre_tokenizer": _sequence("pretokenizers", _pre_tokenizer, chance),
        "model": model,
    }
    text = chance.choice(TEXTS)
    try:
        made = Tokenizer(json.dumps(data), bos_token=0)
        _double(made, text, chance.choice((1, 8, 12)))
    except T2RError as error:
        print(error)
        return "refused"
    return "accepted"


def _double(tokenizer: Tokenizer, text: str, times: int) -> None:
    """Encode and decode doubled texts until one takes ENOUGH; time must grow linearly, whatever the cost per byte."""
    before = math.inf
    for _ in range(times):
        text += text
        start = time.process_time()
        tokenizer.decode(tokenizer.encode(text))
        spent = time.process_time() - start
        if spent > LINEAR * before:
            raise SilentlyWrong(f"{len(text)} characters took {spent:.2f} s, and half as many {before:.2f} s")
        if spent > ENOUGH:
            return
        before = spent if spent > ENOUGH / 8 else math.inf

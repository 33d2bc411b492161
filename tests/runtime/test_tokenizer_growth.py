"""Tokenization time is linear in the length of a text, measured as CPU time since the library has no call counts.

Ratio of the least times of several interleaved turns, at eight times the length: linear is 8, quadratic 64.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tokenizers import Regex, normalizers

from golden.families import FAMILIES, O200K
from golden.parts import split
from runtime.test_tokenizer_bounds import added, metaspace, replace, sequence, unigram, with_parts
from t2r_runtime import Tokenizer
from t2r_runtime.text.patterns import linear

SHORT, TIMES, MOST = 4_000, 8, 30
EDGES, ENDS = "^ +| +$", r"\s+$"
GROWING: dict[str, tuple[dict[str, Any], str, str]] = {
    "blanks inside": ({"normalizer": replace(EDGES, "", "Regex")}, " ", "b"),
    "blanks before no end of a line": ({"pre_tokenizer": split(ENDS)}, " ", "b"),
    "capitals": ({"pre_tokenizer": split(O200K)}, "A", "1"),
    "spaces before added tokens": ({"added_tokens": added("<m>", lstrip=True)}, " <m>", ""),
    "words beside added tokens": ({"added_tokens": added("<m>", single_word=True)}, "<m> ", ""),
    "marks before words": ({"pre_tokenizer": sequence(*[metaspace()] * 2, name="pretokenizers")}, "a ", ""),
    "nested pieces": ({"model": unigram("b", *("a" * n for n in range(1, 257)))}, "a", ""),
}


def spent(tokenizer: Tokenizer, text: str) -> float:
    start = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - start


@pytest.mark.parametrize("name", GROWING)
def test_linear_time(name: str) -> None:
    parts, unit, end = GROWING[name]
    tokenizer = Tokenizer(with_parts(**parts), bos_token=0)
    texts = [f"b{unit * count}{end}" for count in (SHORT, TIMES * SHORT)]
    turns = [[spent(tokenizer, text) for text in texts] for _ in range(5)]
    short, long = (min(turn[place] for turn in turns) for place in (0, 1))
    assert long < MOST * max(short, 1e-3)


@pytest.mark.parametrize("pattern", [EDGES, ENDS, "^[| ]+|[| ]+$", r"^\|+|\|{2,}$"])
def test_linear_edges_equivalent(pattern: str) -> None:
    assert linear(pattern) != pattern
    slow, fast = (normalizers.Replace(Regex(text), "_").normalize_str for text in (pattern, linear(pattern)))
    for number in range(4**7):
        text = "".join(" |a\n"[number >> 2 * place & 3] for place in range(7))
        assert slow(text) == fast(text)


def test_published_patterns_linear() -> None:
    """The library matches them as they are, except at edges."""
    for parts in FAMILIES.values():
        for regex in (part["pattern"]["Regex"] for part in parts if part["type"] == "Split"):
            assert linear(regex) == regex or regex == ENDS

"""Texts that find differences between tokenizers: all scripts, emoji, controls, runs of blanks, known words."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence

BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1000)]
BLOCKS += [(0x1100, 0x1200), (0x1780, 0x17FF), (0x2000, 0x2070), (0x20A0, 0x2600), (0x2600, 0x27C0), (0x3000, 0x3100)]
BLOCKS += [
    (0x4E00, 0x5200),
    (0xAC00, 0xAE00),
    (0xFB00, 0xFE10),
    (0xFE10, 0x10000),
    (0x1D400, 0x1D500),
    (0x1F1E6, 0x1F200),
]
BLOCKS += [(0x1F300, 0x1FA00), (0xE0020, 0xE0080), (0x11000, 0x11400)]
BLANKS = [" ", "  ", "   ", "\n", "\r\n", "\n\n ", "\t", "\u00a0", "\u3000", "\u2009", "\u0085"]
PIECES = [
    "'s",
    "'S",
    "'ſ",
    "'re",
    "'LL",
    "’ve",
    "123",
    "٣٤",
    "½",
    "²",
    "a1b2",
    "...",
    "?!",
    "—",
    "<s>",
    "</s>",
    "<unk>",
    "▁",
    "<0x41>",
]
PIECES += [
    "👩‍👩‍👧",
    "👍🏽",
    "🇩🇪",
    "é",
    "e\u0301",
    "\ufdfa",
    "ﬁ",
    "Å",
    "क्षि",
    "각",
    "\u200d",
    "\u0000",
    "\ufeff",
    "\ufffd",
    "İ",
]


def texts(seed: int, count: int, words: Sequence[str]) -> Iterator[str]:
    """Random texts, reproducible by the seed."""
    chance = random.Random(seed)
    for _ in range(count):
        made = []
        for _ in range(chance.randint(0, 12)):
            kind = chance.random()
            if kind < 0.3:
                made.append(chance.choice(words))
            elif kind < 0.5:
                made.append(chance.choice(BLANKS))
            elif kind < 0.65:
                made.append(chance.choice(PIECES))
            else:
                low, high = chance.choice(BLOCKS)
                made += [_assigned(chance, low, high) for _ in range(chance.randint(1, 4))]
        yield "".join(made)


def _assigned(chance: random.Random, low: int, high: int) -> str:
    while True:
        character = chr(chance.randrange(low, high))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character

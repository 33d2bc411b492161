"""A Precompiled normalizer: texts and what stands for them, in sentencepiece's form.

32 bits for the bytes of a trie, the trie, and what is written, each behind it with a zero byte. The trie is a double
array (Aoe 1989) as Darts-clone has it: one number a node, of bits 0-7 the byte that leads to it, bit 8 whether a text
ends here, bits 10-30 by how much its children lie elsewhere: a child of byte c is at place XOR offset XOR c, and where
a text ends, the child of 0 holds bit 31 and the place of what is written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

UNITS = 1 << 14
ENDS, VALUE = 1 << 8, 1 << 31


def charsmap(rules: Mapping[str, str]) -> bytes:
    """Rules, none of an empty text, as bytes."""
    written, places = b"", {}
    for text in rules.values():
        if text not in places:
            places[text] = len(written)
            written += text.encode() + b"\0"
    trie = _double_array({text.encode(): places[to] for text, to in rules.items()})
    units = struct.pack(f"<{len(trie)}I", *trie)
    return struct.pack("<I", len(units)) + units + written


def _double_array(values: Mapping[bytes, int]) -> list[int]:
    units, taken, bases = [0] * UNITS, {0}, {0}
    waiting = [(b"", 0)]  # what leads to a node, and its place
    while waiting:
        begun, place = waiting.pop(0)
        children = sorted({key[len(begun)] for key in values if key.startswith(begun) and len(key) > len(begun)})
        labels = [0, *children] if begun in values else children
        base = next(b for b in range(1, UNITS - 256) if b not in bases and not taken & {b ^ c for c in labels})
        bases.add(base)
        taken |= {base ^ c for c in labels}
        units[place] |= (place ^ base) << 10
        if begun in values:
            units[place] |= ENDS
            units[base] = VALUE | values[begun]
        for c in children:
            units[base ^ c] = c
            waiting.append((begun + bytes([c]), base ^ c))
    return units[: (max(taken) | 0xFF) + 1]

"""A Precompiled normalizer: texts and their replacements, in SentencePiece's format.

The format is the size of a trie in bytes (32 bits), the trie, and the replacements, each terminated by a zero byte. The
trie is a double array (Aoe 1989) in Darts-clone's layout, one number per node: bits 0-7 are the byte that leads to it,
bit 8 is set if a text ends here, bits 10-30 are the offset of its children. The child of byte c is at place XOR offset
XOR c; where a text ends, the child of byte 0 holds bit 31 and the place of the replacement.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

UNITS = 1 << 14
ENDS, VALUE = 1 << 8, 1 << 31


def charsmap(rules: Mapping[str, str]) -> bytes:
    """Rules as bytes; none may replace the empty text."""
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
    waiting = [(b"", 0)]  # prefix and place of a node
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

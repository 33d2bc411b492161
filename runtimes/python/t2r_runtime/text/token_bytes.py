"""The bytes that one token adds to a text."""

from __future__ import annotations

import re
from collections.abc import Collection

BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # a piece of byte fallback


def _letters() -> dict[str, int]:
    """GPT-2's letters of bytes: printable Latin-1 characters represent themselves, other bytes U+0100 and up."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}


LETTERS = _letters()


def byte_piece(piece: str, decoders: Collection[str]) -> bytes | None:
    """The bytes of a piece that is written in bytes, such as `<0xDE>` or `Ã`; None for a piece that is text.

    Args:
        decoders: types of the tokenizer's decoders.
    """
    if "ByteFallback" in decoders and (found := BYTE.fullmatch(piece)):
        return bytes.fromhex(found[1])
    if "ByteLevel" in decoders and LETTERS.keys() >= set(piece):
        return bytes(LETTERS[letter] for letter in piece)
    return None

"""Read SentencePiece model files (.spm): pieces with scores, and the normalization of text.

The file is an untrusted Protocol Buffers message. Only the required fields are read, within bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from t2r_runtime.errors import UserError

MAX_FILE = 1 << 26  # bytes
MAX_PIECES = 1 << 20
MAX_PIECE = 1 << 10  # bytes per piece
MODEL_KINDS = {1: "unigram", 2: "bpe"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5  # wire types
DO = "use the file that the model came with"


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int  # NORMAL, UNKNOWN, …


@dataclass(frozen=True)
class PieceModel:
    """Contents of a model file."""

    kind: str  # unigram or bpe
    pieces: tuple[Piece, ...]
    charsmap: bytes  # compiled character normalization; empty: none
    dummy_prefix: bool  # prepend a space to texts
    strip: bool  # strip and collapse white space
    byte_fallback: bool


def read_pieces(data: bytes, where: str) -> PieceModel:
    """Parse the bytes of a model file.

    Args:
        where: name of the file in error messages.

    Raises:
        UserError: another, damaged, too large or unsupported file.
    """
    try:
        found = _read(memoryview(data))
    except (ValueError, OverflowError, struct.error, IndexError) as error:  # UnicodeDecodeError is a ValueError
        raise UserError(f"a sentencepiece model in {where}", f"something else ({error})"[:200], DO) from error
    if not found.pieces:
        raise UserError(f"pieces in {where}", "none", DO)
    return found


def _read(data: memoryview) -> PieceModel:
    if len(data) > MAX_FILE:
        raise ValueError(f"{len(data)} bytes")
    pieces: list[Piece] = []
    # defaults of absent fields
    trainer: dict[int, Any] = {3: 1, 24: 0, 35: 0}
    normalizer: dict[int, Any] = {2: b"", 3: 1, 4: 1, 5: 1}
    for number, value in _fields(data):
        if number == 1:
            if len(pieces) == MAX_PIECES:
                raise ValueError(f"more than {MAX_PIECES} pieces")
            pieces.append(_piece(_message(value)))
        elif number in (2, 3):
            known = trainer if number == 2 else normalizer
            known |= {key: field for key, field in _fields(_message(value)) if key in known}
    for key, value, what in ((24, trainer[24], "white space as a suffix"), (5, not normalizer[5], "spaces unescaped")):
        if value:
            raise ValueError(f"{what}, field {key}")
    if trainer[3] not in MODEL_KINDS:
        raise ValueError(f"a model of the kind {trainer[3]}, neither unigram nor BPE")
    flags = (bool(normalizer[3]), bool(normalizer[4]), bool(trainer[35]))
    return PieceModel(MODEL_KINDS[trainer[3]], tuple(pieces), bytes(_message(normalizer[2])), *flags)


def _piece(data: memoryview) -> Piece:
    values: dict[int, Any] = {1: b"", 2: 0.0, 3: NORMAL}
    values |= {key: field for key, field in _fields(data) if key in values}
    text = bytes(_message(values[1]))
    if not 0 < len(text) <= MAX_PIECE:
        raise ValueError(f"a piece of {len(text)} bytes")
    score = float(values[2])
    if score != score or abs(score) > 1e30:
        raise ValueError(f"a score of {score}")
    return Piece(text.decode(), score, int(values[3]))


def _message(value: Any) -> memoryview:
    if not isinstance(value, memoryview | bytes):
        raise ValueError("a number in the place of a message")
    return memoryview(value)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: field number, and a number or bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, place = _varint(data, place)
            yield number, value
        elif wire == BYTES:
            size, place = _varint(data, place)
            if size > len(data) - place:
                raise ValueError("a message that is cut off")
            yield number, data[place : place + size]
            place += size
        elif wire == NARROW:
            yield number, struct.unpack_from("<f", data, place)[0]
            place += 4
        elif wire == WIDE:
            struct.unpack_from("<d", data, place)
            place += 8
        else:
            raise ValueError(f"a field of the type {wire}")


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number without end")

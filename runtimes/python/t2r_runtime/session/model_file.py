"""Rejects files with two graphs or two values of a metadata key.

ONNX Runtime merges them silently, and other readers would use one or the other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from t2r_runtime.errors import UserError, printable

_GRAPH, _METADATA, _KEY = 7, 14, 1  # field numbers (onnx.proto)
_SIZES = {1: 8, 5: 4}  # bytes by wire type; 0 is a varint, 2 is length-delimited
_MOST = 10  # bytes of a varint
_ORT = b"ORTM"  # at byte 4 of ONNX Runtime's own format, which is not protobuf


def check_once(path: Path) -> None:
    """Read the outer fields of a file that ONNX Runtime has opened.

    Raises:
        UserError: two graphs, or two values of a metadata key.
    """
    with open(path, "rb") as file:
        if file.read(8)[4:] == _ORT:
            return
        file.seek(0)
        try:
            twice = _twice(file, os.fstat(file.fileno()).st_size)
        except (LookupError, ValueError) as error:
            raise UserError("an ONNX file", printable(error), "fetch it again, or export again", "graph") from error
    if twice is not None:
        raise UserError("an ONNX file", f"one with {twice} twice", "export the model again", "graph")


def _twice(file: BinaryIO, end: int) -> str | None:
    """What occurs twice; None if nothing does."""
    graphs, keys = 0, set()
    while file.tell() < end:
        number, size = _field(file)
        after = file.tell() + size
        if number == _METADATA:
            key = _key(file, after)
            if key in keys:
                return f"the key {printable(key.decode(errors='replace'), 60)}"
            keys.add(key)
        graphs += number == _GRAPH
        file.seek(after)
    return "a graph" if graphs > 1 else None


def _key(file: BinaryIO, end: int) -> bytes:
    """The key of a metadata entry."""
    key = b""
    while file.tell() < end:
        number, size = _field(file)
        if number == _KEY:
            key = file.read(size)
        else:
            file.seek(size, os.SEEK_CUR)
    return key


def _field(file: BinaryIO) -> tuple[int, int]:
    """The number of the next field, and the size of its content in bytes."""
    tag = _varint(file)
    if tag & 7 == 0:
        _varint(file)
        return tag >> 3, 0
    return tag >> 3, _varint(file) if tag & 7 == 2 else _SIZES[tag & 7]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 7 * _MOST, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("a number that is cut off")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError(f"a number of more than {_MOST} bytes")

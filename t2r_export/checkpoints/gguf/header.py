"""The header of a GGUF file: metadata, and the places of tensors.

The file is untrusted. Every count, length and offset is compared with the file's size and with a limit before anything
is allocated for it; the reader of the package gguf does not, so only its tables and its dequantization are used.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from t2r_export.checkpoints.gguf.package import gguf_package
from t2r_runtime.errors import UserError, printable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 1 << 26  # bytes; a vocabulary of 262,144 tokens with its merges takes some 15 MB
MAX_KEYS, MAX_TENSORS, MAX_ITEMS = 1 << 12, 1 << 17, 1 << 20
MAX_NAME, MAX_AXES = 1 << 10, 4
MAX_ALIGNMENT = 1 << 16
ALIGNMENT = "general.alignment"
DOWNLOAD = "download the file again"
TENSOR_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
# numbers of value types in the file -> NumPy's
NUMBERS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")))
NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
BOOL, TEXT, ARRAY = 7, 8, 9
# types of tensors that are read, as ggml names them
TYPES = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
]


@dataclass(frozen=True)
class Place:
    """A tensor in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]  # as in PyTorch: the last axis is contiguous
    dtype: str  # one of TYPES
    offset: int  # in bytes, from the start of the file
    size: int  # in bytes

    def part(self, number: int) -> Place:
        """One entry of the first axis."""
        size = self.size // self.shape[0]
        return replace(self, shape=self.shape[1:], offset=self.offset + number * size, size=size)


@dataclass(frozen=True)
class Header:
    """Metadata, with arrays as lists, and tensors by their names in the file."""

    path: Path
    values: dict[str, Any]
    tensors: dict[str, Place]


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file.

    Raises:
        UserError: another or a damaged file, a type of tensors that is not read, or no package gguf.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), DOWNLOAD) from error


class _Reader:
    """Reads values from the start of the file to the end of its header."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.limit = min(self.size, MAX_HEADER)
        self.place = 0

    def header(self) -> Header:
        if self.take(4) != MAGIC:
            raise self.wrong("a GGUF file", "another file", "pass a file that begins with GGUF")
        version = self.number("<u4")
        if version not in VERSIONS:
            turned = " of big-endian order" if version & 0xFFFF == 0 else ""
            raise self.wrong("version 2 or 3 of GGUF", f"version {version}{turned}", "convert the model again")
        tensors, keys = self.count("tensors", MAX_TENSORS), self.count("keys", MAX_KEYS)
        values: dict[str, Any] = {}
        for _ in range(keys):
            key = self.text("a key", MAX_NAME)
            if key in values:
                raise self.wrong("each key once", f"{printable(key, 80)} twice")
            values[key] = self.value(self.number("<u4"))
        raw = [self.tensor() for _ in range(tensors)]
        return Header(self.path, values, self.places(raw, values.get(ALIGNMENT, 32)))

    def take(self, size: int) -> bytes:
        """The next bytes, unless they lie beyond the file or the limit of a header."""
        if size > self.limit - self.place:
            within = f"the {self.size:,} bytes of the file and {MAX_HEADER:,} bytes"
            raise self.wrong(f"a header within {within}", f"{self.place + size:,} bytes or more")
        self.place += size
        return self.file.read(size)

    def number(self, kind: str) -> Any:
        """A number or flag. A float32 becomes the number of the fewest digits that rounds to it."""
        data = self.take(np.dtype(kind).itemsize)
        found = np.frombuffer(data, kind)[0]
        return float(str(found)) if kind == "<f4" else found.item()

    def count(self, what: str, most: int) -> int:
        found: int = self.number("<u8")
        if found > most:
            raise self.wrong(f"at most {most:,} {what}", f"{found:,}")
        return found

    def text(self, what: str, most: int = MAX_HEADER) -> str:
        try:
            return self.take(self.count(f"bytes in {what}", most)).decode()
        except UnicodeDecodeError as error:
            raise self.wrong(f"{what} in UTF-8", printable(error)) from error

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text("a value")
        if kind != ARRAY:
            return self.number(self.known(kind))
        kind, count = self.number("<u4"), self.count("values of an array", MAX_ITEMS)
        if kind == TEXT:
            return [self.text("a value") for _ in range(count)]
        number = self.known(kind)
        return np.frombuffer(self.take(count * np.dtype(number).itemsize), number).tolist()

    def known(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise self.wrong("values of a type that GGUF has, and no arrays of arrays", f"type {kind}")
        return NUMBERS[kind]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, number of the type, and offset from the start of the data."""
        name = self.text("the name of a tensor", MAX_NAME)
        if not TENSOR_NAME.fullmatch(name):
            raise self.wrong("names of tensors of at most 128 letters, digits, dots, _ and -", printable(name, 80))
        axes = self.number("<u4")
        if axes > MAX_AXES:
            raise self.wrong(f"at most {MAX_AXES} axes of {name}", f"{axes}")
        shape = tuple(self.number("<u8") for _ in range(axes))
        return name, shape[::-1], self.number("<u4"), self.number("<u8")

    def places(self, raw: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, Place]:
        """The tensors, inside of the file and without common bytes."""
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.wrong(f"a power of two as {ALIGNMENT}", printable(repr(alignment), 40))
        start = -(-self.place // alignment) * alignment
        sizes = _type_sizes()
        places: dict[str, Place] = {}
        for name, shape, number, offset in raw:
            if name in places:
                raise self.wrong("each tensor once", f"{name} twice")
            if number not in sizes:
                raise self.wrong(f"tensors of the types {', '.join(TYPES)}", f"{name} of type {_type_name(number)}")
            dtype, block, block_bytes = sizes[number]
            count = math.prod(shape)
            if not count or (shape and shape[-1] % block):
                raise self.wrong(f"rows of whole blocks of {block} in {name}", f"the shape {list(shape)}")
            size = count // block * block_bytes
            if offset % alignment or start + offset + size > self.size:
                expected = f"{name} at a multiple of {alignment} bytes, within the {self.size:,} bytes of the file"
                raise self.wrong(expected, f"{size:,} bytes at {start + offset:,}")
            places[name] = Place(self.path, name, shape, dtype, start + offset, size)
        ordered = sorted(places.values(), key=lambda place: place.offset)
        for one, other in zip(ordered, ordered[1:], strict=False):
            if one.offset + one.size > other.offset:
                raise self.wrong("tensors without common bytes", f"{one.name} and {other.name} with some")
        return places

    def wrong(self, expected: str, received: str, do: str = DOWNLOAD) -> UserError:
        return UserError(f"in {self.path} {expected}", received, do)


def _type_sizes() -> dict[int, tuple[str, int, int]]:
    """ggml's number of each of TYPES -> name, numbers per block, bytes per block."""
    constants = gguf_package().constants
    kinds = {kind.name: kind for kind in constants.GGMLQuantizationType}
    return {int(kinds[name]): (name, *constants.GGML_QUANT_SIZES[kinds[name]]) for name in TYPES}


def _type_name(number: int) -> str:
    kinds = gguf_package().constants.GGMLQuantizationType
    return next((kind.name for kind in kinds if kind == number), str(number))


def unpacked(file: BinaryIO, place: Place) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The numbers of a tensor as float32, dequantized by the package gguf.

    Raises:
        UserError: the file ends before the tensor does.
    """
    gguf = gguf_package()
    file.seek(place.offset)
    data = file.read(place.size)
    if len(data) != place.size:
        raise UserError(f"{place.size:,} bytes of {place.name} in {place.path}", f"{len(data):,}", DOWNLOAD)
    kinds = gguf.constants.GGMLQuantizationType
    plain = {"F32": "<f4", "F16": "<f2"}.get(place.dtype)
    stored = np.frombuffer(data, plain or np.uint8)
    if plain is None:
        block, size = gguf.constants.GGML_QUANT_SIZES[kinds[place.dtype]]
        stored = stored.reshape(-1, (place.shape[-1] if place.shape else 1) // block * size)
    found = gguf.quants.dequantize(stored, kinds[place.dtype])
    return np.array(found, np.float32).reshape(place.shape)

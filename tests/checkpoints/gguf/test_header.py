"""Headers of GGUF files: each type of tensors, and damaged or hostile files, which are refused before allocation."""

from __future__ import annotations

import builtins
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.gguf.header import TYPES, read_header, unpacked
from t2r_runtime.errors import UserError

U8, U32, U64 = "<B", "<I", "<Q"
START = b"GGUF" + struct.pack("<I", 3)


def counts(tensors: int, keys: int) -> bytes:
    return START + struct.pack("<QQ", tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack(U64, len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack(U32, kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def aligned(data: bytes, rest: bytes) -> bytes:
    return data + bytes(-len(data) % 32) + rest


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_unpacked_as_by_the_package(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(3).integers(0, 256, (3, 2 * size), dtype=np.uint8)
    raw &= 0xBB  # no exponent of all ones: every number is finite
    header = counts(1, 0) + tensor(b"x.weight", (2 * block, 3), kind)
    path = tmp_path / "x.gguf"
    path.write_bytes(aligned(header, raw.tobytes()))
    place = read_header(path).tensors["x.weight"]
    assert place.shape == (3, 2 * block)
    with path.open("rb") as file:
        found = unpacked(file, place)
        assert found.shape == (3, 2 * block)
        part = place.part(1)
        assert unpacked(file, part).tobytes() == found[1].tobytes()
    plain = {"F32": np.float32, "F16": np.float16}.get(name)
    expected = gguf.quants.dequantize(raw if plain is None else raw.view(plain), kind)
    assert found.tobytes() == expected.astype(np.float32).tobytes()


def test_values_have_their_types(tmp_path: Path) -> None:
    values = [
        key(b"byte", 0, b"\xff"),
        key(b"less", 1, b"\xff"),
        key(b"small", 6, struct.pack("<f", 1e-5)),
        key(b"flag", 7, b"\1"),
        key(b"text", 8, text("ä".encode())),
        key(b"list", 9, struct.pack("<IQ", 5, 2) + struct.pack("<ii", -7, 8)),
        key(b"texts", 9, struct.pack("<IQ", 8, 2) + text(b"a") + text(b"")),
        key(b"long", 11, struct.pack("<q", -5)),
        key(b"double", 12, struct.pack("<d", 0.1)),
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(counts(0, len(values)) + b"".join(values))
    assert read_header(path).values == {
        "byte": 255,
        "less": -1,
        "small": 1e-5,
        "flag": True,
        "text": "ä",
        "list": [-7, 8],
        "texts": ["a", ""],
        "long": -5,
        "double": 0.1,
    }


DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "a header within the 0 bytes of the file"),
    "another magic": (b"GGML" + bytes(40), "a GGUF file; received another file"),
    "an old version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 2 or 3 of GGUF; received version 1"),
    "another order": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 of big-endian order"),
    "an end after the version": (START, "a header within the 8 bytes of the file"),
    "many tensors": (counts(1 << 60, 0), "at most 131,072 tensors; received 1,152,921,504,606,846,976"),
    "many keys": (counts(0, 1 << 40), "at most 4,096 keys"),
    "a long key": (counts(0, 1) + struct.pack(U64, 1 << 62), "at most 1,024 bytes in a key"),
    "a long text": (counts(0, 1) + key(b"k", 8, struct.pack(U64, 1 << 62)), "bytes in a value"),
    "a text beyond the end": (counts(0, 1) + key(b"k", 8, struct.pack(U64, 9)), "a header within"),
    "no text": (counts(0, 1) + key(b"k", 8, text(b"\xff")), "a value in UTF-8"),
    "a long array": (counts(0, 1) + key(b"k", 9, struct.pack("<IQ", 0, 1 << 50)), "values of an array"),
    "an array beyond the end": (counts(0, 1) + key(b"k", 9, struct.pack("<IQ", 11, 1 << 20)), "a header within"),
    "arrays in arrays": (counts(0, 1) + key(b"k", 9, struct.pack("<IQ", 9, 1)), "no arrays of arrays; received type 9"),
    "an unknown type": (counts(0, 1) + key(b"k", 13, bytes(8)), "received type 13"),
    "a key twice": (counts(0, 2) + key(b"k", 0, b"1") * 2, "each key once; received k twice"),
    "an alignment of 24": (
        counts(0, 1) + key(b"general.alignment", 4, struct.pack(U32, 24)),
        "a power of two as general.alignment; received 24",
    ),
    "an alignment in words": (counts(0, 1) + key(b"general.alignment", 8, text(b"32")), "a power of two"),
    "a strange name": (counts(1, 0) + tensor(b"a\nb", (1,)), "names of tensors of at most 128 letters"),
    "nine axes": (counts(1, 0) + tensor(b"a", (1,) * 9), "at most 4 axes of a; received 9"),
    "a large product": (counts(1, 0) + tensor(b"a", (1 << 62, 1 << 62)), "a at a multiple of 32 bytes, within"),
    "an empty tensor": (counts(1, 0) + tensor(b"a", (0, 4)), "rows of whole blocks of 1 in a"),
    "half a block": (counts(1, 0) + tensor(b"a", (16, 2), 2), "rows of whole blocks of 32 in a"),
    "a type of integers": (counts(1, 0) + tensor(b"a", (4,), 26), "a of type I32"),
    "a type of no one": (counts(1, 0) + tensor(b"a", (4,), 999), "a of type 999"),
    "an end beyond the file": (counts(1, 0) + tensor(b"a", (4,)), "received 16 bytes at"),
    "an offset between": (aligned(counts(1, 0) + tensor(b"a", (4,), 0, 4), bytes(64)), "a at a multiple of 32"),
    "a tensor twice": (aligned(counts(2, 0) + tensor(b"a", (4,)) * 2, bytes(64)), "each tensor once; received a"),
    "common bytes": (
        aligned(counts(2, 0) + tensor(b"a", (9,)) + tensor(b"b", (4,), 0, 32), bytes(64)),
        "tensors without common bytes; received a and b",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        checkpoint.load(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(aligned(counts(1, 0) + tensor(b"a", (4,)), bytes(16)))
    place = read_header(path).tensors["a"]
    path.write_bytes(b"GGUF")
    with path.open("rb") as file, pytest.raises(UserError, match="16 bytes of a in .*; received 0"):
        unpacked(file, place)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(counts(0, 0))
    original = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:
        if name.partition(".")[0] == "gguf":
            raise ImportError(name)
        return original(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="the package gguf, .*; pip install gguf$"):
        checkpoint.load(path)

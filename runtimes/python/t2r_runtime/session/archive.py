"""Uncompressed, untrusted .npz files with a JSON head: snapshots and datastores.

    t2r.json       an object
    NAME.npy …     arrays

Nothing is unpickled or decompressed, and a member's size is compared with its header before an array is allocated.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import replaceable, replacing

HEAD = "t2r.json"
MAX_HEAD_BYTES = 1 << 16

Array = NDArray[Any]


def write(path: str | Path, head: Mapping[str, Any], arrays: Mapping[str, Array], what: str) -> None:
    """Write the head and the arrays to `path` atomically.

    Args:
        head: its first key is the kind of file.
        what: the kind, for errors.

    Raises:
        UserError: the file cannot be written, or another kind of file is there.
    """
    require_kind_of_file(path, next(iter(head)), what)
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        with _member(archive, HEAD) as member:
            member.write(json.dumps(head).encode())
        for name, array in arrays.items():
            with _member(archive, name + ".npy") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def require_kind_of_file(path: str | Path, key: str, what: str) -> None:
    """Raise UserError if a file at `path` is neither empty nor an archive whose head has `key`."""
    if replaceable(path) is None or not os.path.getsize(path):
        return
    try:
        with zipfile.ZipFile(path) as opened:
            ours = key in Archive(opened).head
    except Exception:  # a damaged file can raise any exception
        ours = False
    if not ours:
        raise UserError(f"a {what} or no file at {printable(path)}", "another file", "choose another path", "file")


class _Member(zipfile.ZipInfo):
    """A member with equal bytes on every system and Python; before 3.11.4, sizes were not in the zip64 field alone."""

    def FileHeader(self, zip64: bool | None = None) -> bytes:
        self.create_system = 3  # 0 on Windows otherwise
        self.create_version = self.extract_version = 45
        header = super().FileHeader(zip64)
        return header[:18] + b"\xff" * 8 + header[26:]


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(_Member(name), "w", force_zip64=True)  # dated 1980


class Archive:
    """An open file. A damaged file raises exceptions of any type, as numpy parses headers as Python literals.

    Attributes:
        head: the object in `HEAD`.
        forms: dtype and shape of each array by name.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive, self._members = archive, _members(archive)
        self.head = self._head(self._members.pop(HEAD))
        self.forms = {name.removesuffix(".npy"): self._form(info) for name, info in self._members.items()}

    def array(self, name: str) -> Array:
        """An array, read to its end, which checks the CRC."""
        with self._archive.open(self._members[name + ".npy"]) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))

    def _head(self, info: zipfile.ZipInfo) -> dict[str, Any]:
        if info.file_size > MAX_HEAD_BYTES:
            raise ValueError(f"{HEAD} is too large")
        head = json.loads(self._archive.read(info))
        if not isinstance(head, dict):
            raise ValueError(f"{HEAD} is malformed")
        return head

    def _form(self, info: zipfile.ZipInfo) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape of a member, whose size must match them."""
        if not info.filename.endswith(".npy"):
            raise ValueError(f"{info.filename!r} is not an array")
        with self._archive.open(info) as member:
            shape, dtype = _header(member)
            if dtype.hasobject or member.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
                raise ValueError(f"{info.filename!r} has a size other than in its header")
        return str(dtype), shape


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if HEAD not in members or len(members) != len(infos):
        raise ValueError(f"no {HEAD}, or a repeated name")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(f"{info.filename!r} is compressed")
    return members


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("an array format other than 1.0")
    shape, columns_first, dtype = np.lib.format.read_array_header_1_0(member)
    if columns_first:
        raise ValueError("an array in Fortran order")
    return shape, dtype

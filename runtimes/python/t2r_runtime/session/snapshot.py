"""Snapshots: the states of a decoder in an uncompressed .npz file, one member per state.

    t2r.json       {"snapshot": 1, "checkpoint_sha256": "…", "position": 517, "token": 3}
    S.3.npy …      one array per state of the graph's metadata

`token` has been chosen but not read; null or missing if there is none. runtimes/CONTRACT.md, "Snapshots", defines the
format byte by byte, for all languages.

Snapshots are untrusted. Nothing is unpickled or decompressed, and names, dtypes and shapes are checked against the
graph before an array is read.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.checks import require_value
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file, replacing
from t2r_runtime.outputs import Kind, check_output
from t2r_runtime.session.interface import check_states

VERSION = 1
HEAD = "t2r.json"
MAX_HEAD_BYTES = 1 << 16
WHAT = "a snapshot written by save_state"
ANEW = "read the prompt with this model and save it again"

Array = NDArray[Any]


def check_place(path: Path, graph: Path) -> None:
    """Raise UserError unless a snapshot of `graph` may be written to `path`; only another snapshot is replaced."""
    if check_output("saved state", path, Kind(), [graph]):
        try:
            with zipfile.ZipFile(path) as archive:
                ours = HEAD in archive.namelist()
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
            ours = False
        if not ours:
            raise UserError(f"a saved state or no file at {path}", "another file", "choose another path", "file")


def save(
    path: str | Path, signature: Signature, states: Mapping[str, Array], position: int, token: int | None = None
) -> None:
    """Write states to `path` atomically.

    Raises:
        UserError: the file cannot be written, or the token is out of range.
    """
    expected = f"a token in 0 … {signature.vocab_size - 1}, or None"
    require_value(_is_token(token, signature), expected, token, "token")
    head = {"snapshot": VERSION, "checkpoint_sha256": signature.checkpoint_sha256, "position": position}
    head |= {} if token is None else {"token": token}
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        with _member(archive, HEAD) as member:
            member.write(json.dumps(head).encode())
        for spec in signature.states:
            with _member(archive, spec.name + ".npy") as member:
                array = np.ascontiguousarray(states[spec.name])
                np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open a member for writing, with equal bytes on every system; ZipInfo dates it 1980."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3  # 0 on Windows otherwise
    return archive.open(info, "w", force_zip64=True)


def load(path: str | Path, signature: Signature) -> tuple[dict[str, Array], int, int | None]:
    """Read states for the graph of `signature`.

    Returns:
        The states by name, the number of tokens read, and the chosen token, if any.

    Raises:
        UserError: not a snapshot, or damaged, of another model, or with other states.
    """
    path = existing_file(path, WHAT)
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
            position, token = _check_head(archive, members.pop(HEAD), signature)
            forms = {name.removesuffix(".npy"): _form(archive, info) for name, info in members.items()}
            check_states(signature, forms)
            return {name: _array(archive, members[name + ".npy"]) for name in forms}, position, token
    except UserError:
        raise
    except Exception as error:  # numpy parses headers as Python literals, with errors of any type
        raise _damaged(path, printable(error)) from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if HEAD not in members or len(members) != len(infos):
        raise ValueError(f"no {HEAD}, or a repeated name")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(f"{info.filename!r} is compressed")
    return members


def _check_head(archive: zipfile.ZipFile, info: zipfile.ZipInfo, signature: Signature) -> tuple[int, int | None]:
    if info.file_size > MAX_HEAD_BYTES:
        raise ValueError(f"{HEAD} is too large")
    head = json.loads(archive.read(info))
    if not isinstance(head, dict) or type(head.get("position")) is not int or not 0 <= head["position"] < 1 << 62:
        raise ValueError(f"{HEAD} is malformed")
    if head.get("snapshot") != VERSION:
        received = f"version {head.get('snapshot')!r}"
        raise UserError(f"a snapshot of version {VERSION}", received, ANEW, "snapshot")
    theirs, ours = head.get("checkpoint_sha256"), signature.checkpoint_sha256
    if theirs != ours:
        received = f"one of the checkpoint {str(theirs)[:12]!r}"
        raise UserError(f"a snapshot of the checkpoint {ours[:12]}", received, ANEW, "snapshot")
    if not _is_token(head.get("token"), signature):
        raise ValueError(f"{HEAD} has a token out of range")
    return head["position"], head.get("token")


def _is_token(value: object, signature: Signature) -> bool:
    return value is None or (type(value) is int and 0 <= value < signature.vocab_size)


def _form(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a member, whose size must match them."""
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename!r} is not an array")
    with archive.open(info) as member:
        shape, dtype = _header(member)
        if dtype.hasobject or member.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"{info.filename!r} has a size other than in its header")
    return str(dtype), shape


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("an array format other than 1.0")
    shape, columns_first, dtype = np.lib.format.read_array_header_1_0(member)
    if columns_first:
        raise ValueError("an array in Fortran order")
    return shape, dtype


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as member:  # reading to the end checks the CRC
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _damaged(path: Path, why: str) -> UserError:
    return UserError(WHAT, f"{path}: {why}", ANEW, "snapshot")

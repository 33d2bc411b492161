"""Checks of output paths before any work.

An output must not be an input or one of its files; it replaces regular files only, in a writable folder; and its suffix
must match its kind.
"""

from __future__ import annotations

import errno
import glob
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from t2r_runtime.contract.signature import ROLES, STEP
from t2r_runtime.errors import UserError
from t2r_runtime.files import replaceable, unwritable

DIGEST = 12  # hex digits in the names of a graph's external data and companions
GRAPHS = (".onnx", ".ort")
MODELS = (".pt", *GRAPHS, ".safetensors", ".gguf", ".adapter", ".npy")


@dataclass(frozen=True)
class Kind:
    """Allowed suffixes of an output."""

    only: tuple[str, ...] = ()  # required suffixes; empty: any but `never`
    never: tuple[str, ...] = MODELS


def check_output(what: str, path: Path, kind: Kind, inputs: Iterable[Path]) -> bool:
    """Check the path of an output.

    Args:
        what: what the output is, for error messages.
        inputs: files and folders that are read.

    Returns:
        Whether `path` is an existing, non-empty file.

    Raises:
        UserError: the output is an input, has a wrong suffix, is not a regular file, or its folder is not writable.
    """
    fits = path.suffix in kind.only if kind.only else path.suffix.lower() not in kind.never
    if not fits:
        wanted = f"ends in {' or '.join(kind.only)}" if kind.only else f"does not end in {path.suffix}"
        raise UserError(f"a name for a {what} that {wanted}", str(path), "correct it", "file")
    for source in inputs:
        _check_apart(path, source)
    stands = replaceable(path) is not None
    folder = path.parent
    if not folder.is_dir():
        raise unwritable(path, OSError(errno.ENOENT, f"no folder {folder}"))
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise unwritable(path, OSError(error.errno, f"the folder {folder} is not writable")) from error
    return stands and path.stat().st_size > 0


def beside(graph: Path) -> Iterator[Path]:
    """External data and companions of the current and former graphs at `graph`."""
    for ending in (".data", *(f".{role}.onnx" for role in ROLES if role != STEP)):
        yield from graph.parent.glob(f"{glob.escape(graph.name)}.{'[0-9a-f]' * DIGEST}{ending}")


def _check_apart(path: Path, source: Path) -> None:
    """Raise UserError if `path` is `source` or shares a file with it. In a folder all files but graphs are sources."""
    if not path.exists():
        return
    if source.is_dir():
        if path.suffix not in GRAPHS and path.resolve().is_relative_to(source.resolve()):
            raise UserError("an output outside of input folders", f"{path} in {source}", "name another place", "file")
        return
    written, read = [path, *beside(path)], [source, *beside(source)]
    if any(_same(one, other) for one in written for other in read):
        raise UserError("an output that is not an input", f"{path} for both", "name another file", "file")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False

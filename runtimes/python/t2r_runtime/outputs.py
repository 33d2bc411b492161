"""What may be written where, asked before the work for it begins.

no output is an input, or a file that belongs to one
only a regular file is replaced, in a folder that can be written to
endings fit: nothing that is no model is named like one
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from t2r_runtime.contract.signature import ROLES, STEP
from t2r_runtime.errors import UserError
from t2r_runtime.files import replaceable, unwritable

DIGEST = 12  # hex digits in the name of a file that belongs to a graph
GRAPHS = (".onnx", ".ort")
MODELS = (".pt", *GRAPHS, ".safetensors", ".gguf", ".npy")


@dataclass(frozen=True)
class Kind:
    """What the name of an output may end in."""

    only: tuple[str, ...] = ()  # one of these, where there are any
    never: tuple[str, ...] = MODELS


def check_output(what: str, path: Path, kind: Kind, inputs: Iterable[Path]) -> bool:
    """Check the name and the place of an output.

    Args:
        what: the output is, for messages.
        inputs: files and folders that are read.

    Returns:
        Whether a file stands at `path` that is not empty.

    Raises:
        UserError: an output that is an input, is named for something else, is no regular file, or lies in no folder
            that can be written to.
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
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unwritable(path, OSError(errno.EACCES, f"a folder that may not be written to, {folder}"))
    return stands and path.stat().st_size > 0


def beside(graph: Path) -> Iterator[Path]:
    """The weights' files and companions of the graphs that stand or stood at `graph`."""
    for ending in (".data", *(f".{role}.onnx" for role in ROLES if role != STEP)):
        yield from graph.parent.glob(f"{glob.escape(graph.name)}.{'[0-9a-f]' * DIGEST}{ending}")


def _check_apart(path: Path, source: Path) -> None:
    """Whether `path` is `source`, in that folder, or a file that belongs to one of the two graphs."""
    if not path.exists():
        return
    if source.is_dir():
        if path.resolve().is_relative_to(source.resolve()):
            raise UserError("an output outside of what is read", f"{path} in {source}", "name another place", "file")
        return
    written, read = [path, *beside(path)], [source, *beside(source)]
    if any(_same(one, other) for one in written for other in read):
        raise UserError("an output that is not an input", f"{path} for both", "name another file", "file")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False

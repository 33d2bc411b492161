"""Files: inputs that are there, and outputs that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from t2r_runtime.checks import require_kind
from t2r_runtime.errors import UserError, printable


def existing_file(path: str | Path, what: str) -> Path:
    """`path` as a Path, if it is a regular file: a pipe or a device would be read for ever.

    Raises:
        UserError: it is none, or no path at all.
    """
    require_path(path)
    if not os.path.isfile(path):
        why = "is not a file" if os.path.exists(path) else "does not exist"
        raise UserError(what, f"{printable(path)}, which {why}", "check the path")
    return Path(path)


def require_path(path: object) -> None:
    """Refuse what is no text and no path."""
    require_kind(path, (str, os.PathLike), "a path")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the body succeeds, remove it if not.

    The file that stood at `path` stays untouched until the rename, whatever happens: a full disk, Ctrl-C, kill -9.

    Raises:
        UserError: the folder is missing or not writable, `path` is a folder, a pipe or a device, or the disk is full.
    """
    require_path(path)
    path = Path(path)
    if os.path.isdir(path):
        raise UserError("a file name to write to", f"the folder {path}", "name a file inside it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError("a file name to write to", f"{path}, a pipe or a device", "name a file")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise _unwritable(path, error) from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        _flush(part)
        # mkstemp makes files that only their owner can read; give the usual permissions of a new file
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _unwritable(path: Path, error: OSError | ValueError) -> UserError:
    why = error.strerror if isinstance(error, OSError) else None
    return UserError(
        f"to be able to write {printable(path)}", why or str(error), "choose another place, or make room there"
    )

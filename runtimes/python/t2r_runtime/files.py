"""Files: inputs that are there, and outputs that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from t2r_runtime.checks import require_kind
from t2r_runtime.errors import UserError, printable

PREFIX = 40  # characters of a name that stand in a temporary one: a name has 255 bytes
OTHERS = {  # what may stand in an output's place, and is not to be replaced
    stat.S_IFLNK: "a link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def existing_file(path: str | Path, what: str) -> Path:
    """`path` as a Path, if it is a regular file: a pipe or a device would be read for ever.

    Raises:
        UserError: it is none, or no path at all.
    """
    require_path(path)
    if not os.path.isfile(path):
        why = "is not a file" if os.path.exists(path) else "does not exist"
        raise UserError(what, f"{printable(path)}, which {why}", "check the path", "file")
    return Path(path)


def require_path(path: object) -> None:
    """Refuse what is no text and no path."""
    require_kind(path, (str, os.PathLike), "a path", "file")


def replaceable(path: str | Path) -> int | None:
    """The permissions of the file that an output at `path` would replace; None where nothing stands.

    Only a regular file that may be written is replaced. A link is none: whether it or what it points to is meant, and
    beside which of the two a graph's other files go, nobody has said.

    Raises:
        UserError: something else stands there, or no file can stand there.
    """
    require_path(path)
    if os.path.isdir(path):
        raise UserError("a file name to write to", f"the folder {path}", "name a file inside it", "file")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unwritable(path, error) from error
    if not stat.S_ISREG(mode):
        kind = OTHERS.get(stat.S_IFMT(mode), "something else")
        target = f" to {os.readlink(path)}" if stat.S_ISLNK(mode) else ""
        raise UserError(f"a regular file at {path}, or nothing", f"{kind}{target}", "name another file", "file")
    if not mode & 0o222:
        raise UserError(
            f"a file that may be written at {path}", "a read-only one", "name another file, or chmod u+w", "file"
        )
    return stat.S_IMODE(mode) & 0o777


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the body succeeds, remove it if not.

    The file that stood at `path` stays untouched until the rename, whatever happens: a full disk, Ctrl-C, kill -9. The
    new one has its permissions.

    Raises:
        UserError: the folder is missing or not writable, what stands at `path` is not `replaceable`, or the disk is
            full.
    """
    require_path(path)
    path = Path(path)
    permissions = replaceable(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:PREFIX]}.", suffix=".part")
    except OSError as error:
        raise unwritable(path, error) from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        _flush(part)
        if permissions is None:
            # mkstemp makes files that only their owner can read; give the usual permissions of a new file
            umask = os.umask(0)
            os.umask(umask)
            permissions = 0o666 & ~umask
        part.chmod(permissions)
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def unwritable(path: str | Path, error: Exception) -> UserError:
    """That nothing can be written at `path`, and why."""
    why = getattr(error, "strerror", None) or str(error)
    do = "choose another place, or make room there"
    return UserError(f"to be able to write {printable(path)}", why, do, "file")

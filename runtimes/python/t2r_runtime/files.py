"""Files: inputs that are there, and outputs that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from t2r_runtime.checks import require_kind
from t2r_runtime.errors import UserError, printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
LOCKS: bool = fcntl is not None

PREFIX = 40  # characters of a name that stand in a temporary one: a name has 255 bytes
PART = re.compile(r"\.[a-z0-9_]{8}\.part$")  # how the names that tempfile makes end
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
    with temporary_beside(path) as part:
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


@contextlib.contextmanager
def temporary_beside(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new temporary file, or folder, in the folder of `path`; it is gone at the end.

    It is locked while its process lives. What killed processes left of the same `path` is not, and is removed first.

    Raises:
        UserError: nothing can be made there.
    """
    prefix = f".{path.name[:PREFIX]}."
    try:
        _remove_abandoned(path.parent, prefix)
        part, handle = _new_part(path.parent, prefix, folder)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield part
    finally:
        _remove(part)
        if handle is not None:
            os.close(handle)


def _new_part(parent: Path, prefix: str, folder: bool) -> tuple[Path, int | None]:
    """A new temporary file or folder, and the handle that holds its lock."""
    while True:
        if folder:
            name = tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=".part")
            handle = os.open(name, os.O_RDONLY) if LOCKS else None
        else:
            handle, name = tempfile.mkstemp(dir=parent, prefix=prefix, suffix=".part")
        if not LOCKS:  # and an open file could not be renamed
            if handle is not None:
                os.close(handle)
            return Path(name), None
        assert handle is not None
        with contextlib.suppress(OSError):  # a file system without locks: nothing is ever taken for abandoned there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(name):  # another process may have taken it for abandoned before it was locked
            return Path(name), handle
        os.close(handle)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the temporary files and folders with this prefix that no process has locked."""
    if not LOCKS:
        return
    with os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(prefix) and PART.search(entry.name)]
    for name in found:
        with contextlib.suppress(OSError):  # somebody else's, or gone by now
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(Path(name))
            finally:
                os.close(handle)


@contextlib.contextmanager
def locked(path: str | Path, wait: bool) -> Iterator[None]:
    """Be the only program that writes `path`, among those that ask; a program that dies no longer is.

    The lock is the operating system's, on a file beside `path` that is gone at the end.

    Args:
        wait: for the other's end, where there is one.

    Raises:
        UserError: another program writes `path`, and `wait` is false; or no file can be beside it.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.lock")
    try:
        handle = _locked(beside, wait)
        while not _stands(handle, beside):  # its holder has ended since, and with it the file
            os.close(handle)
            handle = _locked(beside, wait)
    except BlockingIOError:
        do = "wait for its end, or name another file"
        raise UserError(f"nobody else to write {path}", "a program that does", do, "file") from None
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, wait: bool) -> int:
    """The handle of a file that is locked, where the system and the file system have locks."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if LOCKS:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return handle
        os.close(handle)
        raise
    return handle


def _stands(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def unwritable(path: str | Path, error: Exception) -> UserError:
    """That nothing can be written at `path`, and why."""
    why = getattr(error, "strerror", None) or str(error)
    do = "choose another place, or make room there"
    return UserError(f"to be able to write {printable(path)}", why, do, "file")

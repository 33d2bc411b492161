"""Input files, and atomic output files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from t2r_runtime.checks import require_kind
from t2r_runtime.errors import UserError, printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
LOCKS: bool = fcntl is not None

PREFIX = 40  # characters of a name kept in temporary names, which are limited to 255 bytes
PART = re.compile(r"\.[a-z0-9_]{8}\.part$")  # suffix of names made by tempfile
UMASK = threading.Lock()  # between two threads, a changed umask would stay
OTHERS = {  # file types that outputs do not replace
    stat.S_IFLNK: "a link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def existing_file(path: str | Path, what: str) -> Path:
    """Check that `path` is a regular file; reading a pipe or a device may not end.

    Raises:
        UserError: it is not.
    """
    require_path(path)
    if not os.path.isfile(path):
        why = "is not a file" if os.path.exists(path) else "does not exist"
        raise UserError(what, f"{printable(path)}, which {why}", "check the path", "file")
    return Path(path)


def is_file_name(name: object) -> bool:
    """Whether `name` is a printable file name without a path, so that it stays in its folder on every system."""
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and not set(name) & set("/\\:")


def require_path(path: object) -> None:
    """Raise UserError unless `path` is a str or a PathLike."""
    require_kind(path, (str, os.PathLike), "a path", "file")


def replaceable(path: str | Path) -> int | None:
    """The permissions of the file that an output at `path` would replace; None if there is none.

    Only a writable regular file is replaced. A link is ambiguous: it or its target could be meant.

    Raises:
        UserError: another kind of file exists there, or the path is invalid.
    """
    require_path(path)
    if os.path.isdir(path):
        raise UserError("a file name to write to", f"the folder {path}", "name a file inside it", "file")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise unwritable(path, error) from error
    if not stat.S_ISREG(mode):
        kind = OTHERS.get(stat.S_IFMT(mode), "something else")
        target = f" to {os.readlink(path)}" if stat.S_ISLNK(mode) else ""
        raise UserError(f"a regular file at {path}, or nothing", f"{kind}{target}", "name another file", "file")
    if not mode & 0o222:
        do = "name another file, or chmod u+w"
        raise UserError(f"a writable file at {path}", "a read-only one", do, "file")
    return stat.S_IMODE(mode) & 0o777


def writable_folder(folder: Path, what: str, mode: int = 0o777, do: str = "name another") -> None:
    """Create a folder if it is missing.

    Args:
        what: the folder in an error. do: what to do then.

    Raises:
        UserError: it cannot be created, or no file can be created in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        exists = isinstance(error, FileExistsError)
        why = "a file" if exists else printable(getattr(error, "strerror", None) or error)
        raise UserError(f"a writable folder {what}", why, do, "file") from error


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to `path` if the body succeeds, else removed.

    A file at `path` is unchanged until the rename, which keeps its permissions.

    Raises:
        UserError: the folder is missing or not writable, `path` is not `replaceable`, or the disk is full.
    """
    require_path(path)
    path = Path(path)
    permissions = replaceable(path)
    with temporary_beside(path) as part:
        try:
            yield part
            _flush(part)
            if permissions is None:
                # mkstemp creates files that only the owner can read; use the default permissions instead
                permissions = 0o666 & ~_umask()
            part.chmod(permissions)
            part.replace(path)
        except OSError as error:
            raise unwritable(path, error) from error


@contextlib.contextmanager
def temporary_beside(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new temporary file or folder in the folder of `path`, and remove it at the end.

    It is locked while its process lives; unlocked ones left by killed processes are removed first.

    Raises:
        UserError: it cannot be created.
    """
    prefix = f".{path.name[:PREFIX]}."
    try:
        remove_abandoned(path.parent, prefix)
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
    """Create a temporary file or folder; returns it and the handle of its lock."""
    while True:
        if folder:
            name = tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=".part")
            handle = os.open(name, os.O_RDONLY) if LOCKS else None
        else:
            handle, name = tempfile.mkstemp(dir=parent, prefix=prefix, suffix=".part")
        if not LOCKS:  # Windows, where an open file cannot be renamed
            if handle is not None:
                os.close(handle)
            return Path(name), None
        assert handle is not None
        with contextlib.suppress(OSError):  # a file system without locks: nothing is removed as abandoned
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(name):  # another process may have removed it before it was locked
            return Path(name), handle
        os.close(handle)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove unlocked temporary files and folders with this prefix."""
    if not LOCKS:
        return
    with os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(prefix) and PART.search(entry.name)]
    for name in found:
        with contextlib.suppress(OSError):  # locked, or removed by another process
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(Path(name))
            finally:
                os.close(handle)


@contextlib.contextmanager
def locked(path: str | Path, wait: bool) -> Iterator[None]:
    """Hold an advisory lock for writing `path`, released when the process ends.

    The lock is on a file beside `path`, removed at the end. Windows has none.

    Args:
        wait: wait for another holder instead of raising.

    Raises:
        UserError: another process holds the lock and `wait` is false, or the lock file cannot be created.
    """
    if not LOCKS:
        yield
        return
    path = Path(path)
    beside = path.with_name(f".{path.name}.lock")
    try:
        handle = _locked(beside, wait)
        while not _stands(handle, beside):  # the previous holder has removed the file
            os.close(handle)
            handle = _locked(beside, wait)
    except BlockingIOError:
        do = "wait for its end, or name another file"
        raise UserError(f"exclusive access to {path}", "another program writing it", do, "file") from None
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, wait: bool) -> int:
    """Open and lock a file, if the file system supports locks."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
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


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    with UMASK:
        umask = os.umask(0)
        os.umask(umask)
    return umask


def _flush(path: Path) -> None:
    with open(path, "r+b") as file:  # Windows requires write access
        os.fsync(file.fileno())


def unwritable(path: str | Path, error: Exception) -> UserError:
    """The error of a path that cannot be written."""
    why = getattr(error, "strerror", None) or str(error)
    do = "choose another place, or make room there"
    return UserError(f"to be able to write {printable(path)}", why, do, "file")

"""Files for every room: written whole or not at all, by one program at a time, and their hashes."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing, unwritable


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


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
        raise UserError(f"nobody else to write {path}", "a program that does", do) from None
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, wait: bool) -> int:
    """The handle of a file that is locked, where the file system has locks."""
    import fcntl

    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
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


def sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_beside(path: str | Path) -> Callable[[], str]:
    """Begin `sha256` of a file while the caller goes on; what is returned waits for it, and raises what it raises.

    The file must be one that has an end. The program does not wait for what nobody asked for.
    """
    digests: list[str] = []
    errors: list[OSError] = []

    def work() -> None:
        try:
            digests.append(sha256(path))
        except OSError as error:
            errors.append(error)

    def result() -> str:
        thread.join()
        for error in errors:
            raise error
        return digests[0]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return result

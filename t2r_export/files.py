"""Atomic file writes, file hashes, and folder listings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing

MAX_ENTRIES = 100_000  # files and folders below a folder named by the user


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with replacing(path) as part:
        part.write_bytes(data)


def sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_beside(path: str | Path) -> Callable[[], str]:
    """Compute `sha256` of a regular file in a daemon thread.

    Returns:
        A function that waits for the digest and returns it, or raises OSError.
    """
    found: list[str | OSError] = []

    def work() -> None:
        try:
            found.append(sha256(path))
        except OSError as error:
            found.append(error)

    def result() -> str:
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return result


def entries(folder: str | Path) -> Iterator[Path]:
    """Files and links in a folder, recursively and in no order. Links to folders are not followed.

    Raises:
        UserError: more than MAX_ENTRIES files and folders, such as in `/`.
    """
    seen = 0
    for place, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MAX_ENTRIES:
            expected = f"a folder with at most {MAX_ENTRIES:,} files and folders below it"
            raise UserError(expected, f"more in {folder}", "name a smaller folder")
        links = (name for name in folders if os.path.islink(os.path.join(place, name)))
        yield from (Path(place, name) for name in (*links, *files))

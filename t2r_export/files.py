"""Atomic writes and hashes of files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from t2r_runtime.files import replacing


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

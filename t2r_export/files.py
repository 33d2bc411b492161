"""Files for every room: written whole or not at all, and their hashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from t2r_runtime.files import replacing


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


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

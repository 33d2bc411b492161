"""Write torch archives atomically, and check them by the checksum of each member."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import replacing


def write_archive(path: str | Path, data: Any) -> None:
    """Write `data` with torch.save, atomically. Raises UserError if the file cannot be written."""
    with replacing(path) as part, part.open("wb") as file:
        out: Any = _Recording(file)
        try:
            torch.save(data, out)  # a file object: torch would store the name of a path in the archive
        except Exception:
            if out.error is not None:
                raise out.error from None
            raise


def archive_sha256(data: Any) -> str:
    """Hex SHA-256 of the file that `write_archive` would write."""
    out: Any = _Hashing()
    torch.save(data, out)
    return str(out.digest.hexdigest())


class _Hashing:
    """A file object that only computes a hash."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


class _Recording:
    """A file object that keeps the OSError of a failed write, which torch replaces by a RuntimeError."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def check_archive(path: Path, what: str, do: str) -> bytes:
    """Check that a file is a complete, uncompressed zip archive before torch reads it.

    torch stores without compression; a compressed member could unpack to more than the file's size. Every member is
    checked against its checksum.

    Args:
        path: a regular file.
        what: name of the expected file in error messages.
        do: advice in error messages.

    Returns:
        The pickle of the archive.

    Raises:
        UserError: another or a damaged file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("/data.pkl")]
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise UserError(f"an archive without compression in {path}", "a compressed one", do)
            if len(pickles) != 1:
                raise UserError(f"{what} in {path}", "another archive", do)
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise UserError(f"{what} in {path}", "an archive with overlapping members", do)
            damaged = archive.testzip()
            if damaged is not None:
                received = f"{printable(damaged, 100)} that differs from its checksum"
                raise UserError(f"{what} without damage in {path}", received, f"copy or download it again; or {do}")
            return archive.read(pickles[0])
    except (UserError, OSError):
        raise
    except Exception as error:  # zipfile raises any exception for damaged bytes
        received = f"no archive, or a part of one ({printable(error, 200)})"
        raise UserError(f"{what} in {path}", received, do) from error

"""The archives of torch that we write and read: whole, by the checksum of each member, and not of a full disk."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import replacing


def write_archive(path: str | Path, data: Any) -> None:
    """Write `data` as torch does, whole or not at all. Raises UserError where the file cannot be written."""
    with replacing(path) as part, part.open("wb") as file:
        out: Any = _Recording(file)
        try:
            torch.save(data, out)  # a file object, because torch would put a path's own name into the archive
        except Exception:
            if out.error is not None:
                raise out.error from None
            raise


def archive_sha256(data: Any) -> str:
    """Hex SHA-256 of the file that `write_archive` would make."""
    out: Any = _Hashing()
    torch.save(data, out)
    return str(out.digest.hexdigest())


class _Hashing:
    """A file that is only hashed."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


class _Recording:
    """A file that remembers why a write failed: torch reports a full disk as a RuntimeError about its archive."""

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
    """Refuse what is not a whole, uncompressed zip archive before torch looks at it.

    torch stores without compression; a compressed member can only be there to unpack into more than the file's size.
    Every member is read against its checksum; what has none (padding, times) is nothing that anybody reads.

    Args:
        path: a file that has an end.
        what: the file is, and `do`, what to do where it is not: both for a person.

    Returns:
        The instructions of its pickle.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("/data.pkl")]
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise UserError(f"an archive without compression in {path}", "a compressed one", do)
            if len(pickles) != 1:
                raise UserError(f"{what} in {path}", "an archive of something else", do)
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise UserError(f"{what} in {path}", "an archive whose members share their bytes", do)
            damaged = archive.testzip()
            if damaged is not None:
                received = f"{printable(damaged, 100)} that differs from its checksum"
                raise UserError(f"{what}, whole, in {path}", received, f"copy or download it again; or {do}")
            return archive.read(pickles[0])
    except (UserError, OSError):
        raise
    except Exception as error:  # zipfile, on damaged bytes, raises any
        received = f"no archive, or a part of one ({printable(error, 200)})"
        raise UserError(f"{what} in {path}", received, do) from error

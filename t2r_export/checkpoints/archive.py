"""Write torch archives atomically; read those of unknown origin, after a check of every byte that torch will use."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from t2r_export.checkpoints.pickles import Reference, Refused, check_pickle
from t2r_export.checkpoints.zip_members import OtherLayout, check_members
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


def read_archive(path: Path, what: str, do: str, mapped: bool = False) -> Any:
    """Read tensors and plain data from a torch archive of unknown origin, without running code in it.

    Args:
        path: a regular file.
        what: name of the expected file in error messages.
        do: advice in error messages.
        mapped: map the tensors into memory: pages are loaded on use, and can be evicted.

    Raises:
        UserError: another or a damaged file. OSError: it cannot be read.
    """
    instructions = _instructions(path, what, do)
    try:
        check_pickle(instructions)
        with warnings.catch_warnings(action="ignore"):  # about other kinds of archives, which it refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Reference as error:
        expected = f"tensors and plain data, and nothing else, in {path}"
        raise UserError(expected, printable(error), f"do not trust this file; {do}") from error
    except Refused as error:
        raise UserError(f"{what} in {path}", f"something else: {printable(error)}", do) from error
    except Exception as error:  # pickletools and torch raise any exception for damaged bytes
        reason = "contents that torch refuses" if "weights_only" in str(error) else printable(error, 100)
        raise UserError(f"{what} without damage in {path}", reason, do) from error


def _instructions(path: Path, what: str, do: str) -> bytes:
    """The pickle that torch will load. Every member is checked against its checksum.

    Raises:
        UserError: another or a damaged file.
    """
    try:
        pickles = [member for member in check_members(path) if member.filename.partition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise UserError(f"{what} in {path}", "another archive", do)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                received = f"{printable(damaged, 100)} that differs from its checksum"
                raise UserError(f"{what} without damage in {path}", received, f"copy or download it again; or {do}")
            return archive.read(pickles[0])
    except (UserError, OSError):
        raise
    except OtherLayout as error:
        raise UserError(f"{what} in {path}", f"an archive with {error}", do) from error
    except Exception as error:  # zipfile raises any exception for damaged bytes
        received = f"no archive, or a part of one ({printable(error, 200)})"
        raise UserError(f"{what} in {path}", received, do) from error

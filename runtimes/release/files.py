"""The files of a release, and SHA256SUMS, which lists all others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

SUMS = "SHA256SUMS"
BILL = "sbom.cdx.json"
STATEMENT = "provenance.intoto.json"
ARCHIVES = {".whl", ".gz", ".tgz", ".crate", ".zip", ".jar", ".deb"}  # other files of a release describe these


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a release but SHA256SUMS, in the order of their names."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: sha256(path) for name, path in sorted(files.items()) if name != SUMS}


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS in the format of `sha256sum --check`."""
    lines = [f"{held}  {name}\n" for name, held in hashes(folder).items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """The names and hashes in SHA256SUMS.

    Raises:
        ValueError: there is no such file, or a line has another form.
    """
    if not (folder / SUMS).is_file():
        raise ValueError(f"expected a release, a folder with {SUMS}; received {folder} without it; name another folder")
    found = {}
    for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match is None or match[2] in found:
            raise ValueError(
                f"expected lines of {SUMS} with a hash, two blanks and a name that no other line has; received "
                f"{line!a}; download it again"
            )
        found[match[2]] = match[1]
    return found


def named(names: Iterable[str]) -> str:
    """Names of strangers, in a message."""
    return ", ".join(ascii(name)[1:-1] for name in names)

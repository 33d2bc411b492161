"""Build the packages of a release again, from its commit in another folder, and compare the files byte by byte."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.files import ARCHIVES, BILL, STATEMENT, hashes, named
from release.packages import Tools

NOTES = (BILL, STATEMENT)  # of all packages of a release: their entries are compared, or their files


def clone(tree: Path, place: Path) -> Path:
    """Clone the commit that is checked out in `tree` to `place`; returns `place`."""
    subprocess.run(["git", "clone", "--quiet", "--no-tags", tree, place], check=True, capture_output=True, text=True)
    return place


def build(name: str, source: Path, out: Path, tools: Tools, date: int) -> str | None:
    """Build the package `name` of the tree `source` into the folder `out`; returns None, or why it was not built.

    libt2r is built in a folder of `source`.
    """
    command = [sys.executable, "-m", "release", "build", str(out), "--only", name]
    if tools.others:
        command += ["--platforms", *(each.name for each in tools.others)]
    for option, words in (("--jdk", tools.jdk), ("--cmake", tools.cmake)):
        if words:
            command.append(f"{option}={shlex.join(map(str, words))}")
    path = os.pathsep.join([str(source / "runtimes"), *filter(None, [os.environ.get("PYTHONPATH")])])
    known = {**os.environ, "PYTHONPATH": path, "SOURCE_DATE_EPOCH": str(date)}
    done = subprocess.run(command, cwd=source, env=known, capture_output=True, text=True, errors="replace")
    return None if done.returncode == 0 else done.stderr.strip().removeprefix("release: ")


def differences(folder: Path, built: Path) -> list[str]:
    """What the files of `built`, of one package, differ in from those of a release in `folder`; empty if in nothing.

    A file that `folder` lacks is no difference: other systems have packages of their own.
    """
    found = []
    received = hashes(folder)
    for name, held in hashes(built).items():
        if name not in NOTES and name in received and received[name] != held:
            members = "" if Path(name).suffix == ".deb" else _members(folder / name, built / name)
            found.append(f"{named([name])}{members}")
    theirs, ours = _entries(folder), _entries(built)
    found += [f"the entry of {named([name])} in {BILL}" for name in ours if theirs.get(name) != ours[name]]
    return found


def _entries(folder: Path) -> dict[str, Any]:
    """Components of a bill of materials with their dependencies. Those of the whole release are left out."""
    document = json.loads((folder / BILL).read_text(encoding="utf-8"))
    needed = {entry["ref"]: entry.get("dependsOn") for entry in document.get("dependencies", ())}
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in ARCHIVES}
    parts = [part for part in document.get("components", ()) if part["bom-ref"] in present]
    return {part["bom-ref"]: (part, needed.get(part["bom-ref"])) for part in parts}


def _members(one: Path, other: Path) -> str:
    """The members in which two archives differ, in parentheses."""
    try:
        first, second = contents(one), contents(other)
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        return f" ({error!r})"
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return f" ({named(names[:5])}{', …' if len(names) > 5 else ''})" if names else " (order or compression)"


def contents(path: Path) -> Mapping[str, tuple[object, ...]]:
    """What an archive says of each member: mode, date, owner, and its bytes' checksum."""
    if path.suffix in (".whl", ".zip", ".jar"):
        with zipfile.ZipFile(path) as archive:
            return {
                entry.filename: (entry.external_attr, entry.date_time, entry.CRC, entry.file_size)
                for entry in archive.infolist()
            }
    found = {}
    with tarfile.open(path) as packed:
        for entry in packed:
            file = packed.extractfile(entry) if entry.isfile() else None
            held = hashlib.file_digest(file, "sha256").hexdigest() if file else entry.linkname  # type: ignore[arg-type]
            found[entry.name] = (entry.mode, entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, held)
    return found

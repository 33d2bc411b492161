"""Write archives that no packaging tool writes: Go modules for a module proxy, and source archives."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from release.stage import date, moment


def go_module(source: Path, out: Path, version: str) -> None:
    """Write the module in `source` in the layout of GOPROXY=file://OUT (go.dev/ref/mod#goproxy-protocol).

    Raises:
        ValueError: go.mod does not name a module.
    """
    definition = (source / "go.mod").read_text(encoding="utf-8")
    found = re.match(r"module (\S+)", definition)
    if not found:
        raise ValueError("expected a module path in the first line of go.mod; received none; add one")
    place = out / found[1] / "@v"
    place.mkdir(parents=True)
    (place / "list").write_text(f"v{version}\n", encoding="utf-8")
    (place / f"v{version}.mod").write_text(definition, encoding="utf-8")
    info = {"Version": f"v{version}", "Time": moment()}
    (place / f"v{version}.info").write_text(json.dumps(info), encoding="utf-8")
    with zipfile.ZipFile(place / f"v{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(source):
            name = f"{found[1]}@v{version}/{path.relative_to(source).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(date())[:6]), path.read_bytes(), zipfile.ZIP_DEFLATED)


def sources(source: Path, out: Path, name: str) -> None:
    """Write OUT/NAME.tar.gz, with the files of `source` in the folder NAME."""
    files = {f"{name}/{path.relative_to(source).as_posix()}": path.read_bytes() for path in _files(source)}
    _write(out / f"{name}.tar.gz", files)


def undated(path: Path) -> None:
    """Rewrite a .tar.gz with fixed dates, no owners and sorted names, so that builds are reproducible."""
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        files = {name: file.read() for name, file in members if file is not None}
    _write(path, files)


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=date()) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(files[name]), date()
            archive.addfile(entry, io.BytesIO(files[name]))


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file())

"""Archives that no tool of an ecosystem writes: a module of Go as a proxy serves it, and sources as a .tar.gz."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import time
import zipfile
from pathlib import Path

from release.stage import date, moment


def go_module(source: Path, out: Path, version: str) -> None:
    """The module in `source` as GOPROXY=file://OUT serves it (go.dev/ref/mod#goproxy-protocol)."""
    definition = (source / "go.mod").read_text(encoding="utf-8")
    found = re.match(r"module (\S+)", definition)
    if not found:
        raise ValueError("expected a module's path in go.mod; received none; name one in its first line")
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
    """OUT/NAME.tar.gz with the files of `source` in the folder NAME."""
    with (
        (out / f"{name}.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=date()) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in _files(source):
            archive.add(path, f"{name}/{path.relative_to(source).as_posix()}", filter=_ownerless)


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file())


def _ownerless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry

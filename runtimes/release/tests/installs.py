"""Helpers of the tests: files of a release, clean environments, programs of READMEs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bindings_build import refuse
from release.files import BILL, STATEMENT, sha256, write_sums
from release.packages import Tools

BARE = {"PATH": os.environ["PATH"]}


@dataclass(frozen=True)
class Released:
    """A folder of artifacts, and the packages that could not be built, with the reason."""

    out: Path
    missing: Mapping[str, str]
    tools: Tools
    environment: Mapping[str, str]  # of these tools

    def file(self, package: str, pattern: str) -> Path:
        """The artifact that matches a pattern; skips the test if its toolchain is missing."""
        if package in self.missing:
            refuse(self.missing[package])
        [found] = self.out.glob(pattern)
        return found


def environment(folder: Path) -> Path:
    """Create an environment; returns its Python."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def pip(python: Path, *words: object) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


def fenced(readme: str, language: str) -> str:
    """The first program in a language in a README."""
    found = re.search(rf"^```{language}\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert found, f"no program in {language}"
    return found[1]


def output(folder: Path, *command: object, **more: str) -> str:
    """Run a program that must succeed; returns its stdout."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=BARE | more, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def program(tree: Path, *words: object, code: int = 0, **more: str) -> str:
    """Run the program `release` of a tree, which must end with an exit status; returns what it prints."""
    command = [sys.executable, "-m", "release", *map(str, words)]
    known = {**BARE, "PYTHONPATH": str(tree / "runtimes"), **more}
    done = subprocess.run(command, cwd=tree, env=known, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def unpacked(archive: Path, place: Path) -> Path:
    """Unpack an archive; returns its only folder."""
    shutil.unpack_archive(archive, place, "gztar", filter="data")
    [folder] = place.iterdir()
    return folder


def contents(path: Path) -> dict[str, bytes]:
    """The files of an archive."""
    if path.suffix in (".whl", ".jar", ".zip"):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as packed:
        members = [(member.name, packed.extractfile(member)) for member in packed if member.isfile()]
        return {name: file.read() for name, file in members if file is not None}


def relist(folder: Path, archive: Path, before: Mapping[str, str]) -> None:
    """Write the hash of a changed archive wherever hashes are; `before` has those before the change."""
    for note, name in ((BILL, archive.name), (STATEMENT, archive.name), (STATEMENT, BILL)):
        text = (folder / note).read_text("utf-8")
        assert before[name] in text
        (folder / note).write_text(text.replace(before[name], sha256(folder / name)), "utf-8")
    write_sums(folder)

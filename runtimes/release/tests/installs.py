"""Helpers of the tests: files of a release, clean environments, programs of READMEs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bindings_build import refuse

BARE = {"PATH": os.environ["PATH"]}


@dataclass(frozen=True)
class Released:
    """A folder of artifacts, and the packages that could not be built, with the reason."""

    out: Path
    missing: Mapping[str, str]

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


def unpacked(archive: Path, place: Path) -> Path:
    """Unpack an archive; returns its only folder."""
    shutil.unpack_archive(archive, place, "gztar", filter="data")
    [folder] = place.iterdir()
    return folder

"""A package's folder as it is published: its files that git knows, with the licence and the notices beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from release.versions import ROOT

LEGAL = ("LICENSE", "NOTICE")


def stage(folder: str, place: Path, only: Sequence[str] = (".",)) -> Path:
    """Copy `folder` of the repository to `place`: files that are committed, or could be, all of one date.

    `only` are the paths in it that are taken. A date of their own would make each build's archives differ.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only]
    names = subprocess.run(listed, check=True, capture_output=True, text=True, cwd=ROOT / folder).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / folder / name).is_file():  # a deleted file is listed until that is committed
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / folder / name, place / name)
    for name in LEGAL:
        shutil.copy(ROOT / name, place / name)
    for path in place.rglob("*"):
        os.utime(path, (date(), date()))
    return place


def moment() -> str:
    """The same in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date()))


def date() -> int:
    """Of the last commit, in seconds since 1970; or $SOURCE_DATE_EPOCH."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)

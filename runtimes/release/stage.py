"""Copy the published files of a package: those tracked by git, with LICENSE and NOTICE."""

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
    """Copy the files of `folder` under the paths `only` to `place`; returns `place`.

    Files are those that git tracks or does not ignore. All get the same date, so that archives are reproducible.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only]
    names = subprocess.run(listed, check=True, capture_output=True, text=True, cwd=ROOT / folder).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / folder / name).is_file():  # git lists a deleted file until its deletion is committed
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / folder / name, place / name)
    for name in LEGAL:
        shutil.copy(ROOT / name, place / name)
    for path in place.rglob("*"):
        os.utime(path, (date(), date()))
    return place


def moment() -> str:
    """`date` in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date()))


def date() -> int:
    """$SOURCE_DATE_EPOCH or, if it is not set, the time of the last commit; seconds since 1970."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)

"""Copy the published files of a package: those tracked by git."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from release.versions import ROOT

LEGAL = ("LICENSE", "NOTICE")  # a copy is in the folder of each package


def stage(folder: str, place: Path, only: Sequence[str] = (".",)) -> Path:
    """Copy the files of `folder` under the paths `only` to `place`; returns `place`.

    Files are those that git tracks or does not ignore. All get the same date and mode,
    so that archives are reproducible.
    """
    listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only)
    for name in filter(None, _git(*listed, folder=ROOT / folder).split("\0")):
        if (ROOT / folder / name).is_file():  # git lists a deleted file until its deletion is committed
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / folder / name, place / name)
    moved = date()
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # no published file is a program
        os.utime(path, (moved, moved))
    return place


def commit() -> str:
    """The hash of the commit that is checked out."""
    return _git("rev-parse", "HEAD").strip()


def modified() -> bool:
    """Whether files differ from that commit."""
    return bool(_git("status", "--porcelain"))


def moment() -> str:
    """`date` in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date()))


def date() -> int:
    """$SOURCE_DATE_EPOCH or, if it is not set, the time of the last commit; seconds since 1970."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    return int(_git("log", "-1", "--format=%ct"))


def _git(*words: str, folder: Path = ROOT) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, cwd=folder).stdout

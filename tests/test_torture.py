"""Every operation on files fails once in each writer of files: the old file remains, or the new one is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# faults of each writer, at least
WRITERS = {"graph": 9, "inline": 5, "model": 10, "state": 10, "keep": 8, "report": 5, "corpus": 8, "log": 2, "lines": 5}


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled torture.c."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        (pytest.fail if os.environ.get("T2R_STRICT") == "1" else pytest.skip)("no cc on the PATH, or no Linux")
    library = tmp_path_factory.mktemp("torture") / "torture.so"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, HERE / "torture.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


def torture(library: Path, how: str, place: Path, *writers: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": paths}
    command = [sys.executable, HERE / "torture_writers.py", how, place, *writers]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("how", ["once", "on"])
def test_each_fault(preloaded: Path, how: str, tmp_path: Path) -> None:
    """`on`: the operations after it fail too, as on a full disk."""
    done = torture(preloaded, how, tmp_path, *WRITERS)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    faults = dict(line.split() for line in done.stdout.splitlines())
    assert list(faults) == list(WRITERS)
    assert all(int(faults[name]) >= least for name, least in WRITERS.items()), faults


@pytest.mark.parametrize(
    "writer, said", [("in_place", "operation 2: ['part']"), ("silent", "operation 1: ['report.json']")]
)
def test_wrong_writers_are_found(preloaded: Path, writer: str, said: str, tmp_path: Path) -> None:
    """A writer that writes in place, and one that swallows the error."""
    done = torture(preloaded, "once", tmp_path, writer)
    assert done.returncode == 1
    assert said in done.stderr

"""`make install`: which Python it takes, and one line where our execution provider cannot be built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH is a folder with these programs, which do nothing."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    left_out = ("CXX", "T2R_ONNXRUNTIME_INCLUDE")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": str(folder)}


@pytest.mark.parametrize(
    "found, include, message",
    [
        ([], None, "expected a C++ compiler; received none"),
        (["g++"], "none", "expected ONNX Runtime's headers of 1.23 or later in none; received none"),
        (["g++"], None, "expected ONNX Runtime's headers, or Debian's apt-get to fetch them; received neither"),
    ],
)
def test_provider_that_cannot_be_built_is_one_line(
    found: list[str], include: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    program = tmp_path / ".ci" / "provider.py"  # no fetched headers beside this copy
    program.write_bytes((ROOT / ".ci" / "provider.py").read_bytes())
    environment = programs(tmp_path / "bin", *found) | ({"T2R_ONNXRUNTIME_INCLUDE": include} if include else {})
    for options, code in ((["--optional"], 0), ([], 2)):
        done = subprocess.run([sys.executable, program, *options], env=environment, capture_output=True, text=True)
        shown, empty = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
        assert (done.returncode, shown.count("\n"), empty) == (code, 1, "")
        assert shown.startswith(f"no execution provider t2r: {message}; ")
        assert shown.endswith(", then: make provider\n")


def test_takes_a_python_that_torch_supports(tmp_path: Path) -> None:
    """The first of 3.11 to 3.14 on PATH; without one, a line says which."""
    environment = programs(tmp_path / "bin", "python3")
    for name, code in (("python3.11", 1), ("python3.12", 0)):  # as pyenv's shims of versions that are not selected
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    make = ["/usr/bin/env", "-i", f"PATH={environment['PATH']}", str(shutil.which("make")), "-n", "-C", str(ROOT)]
    shown = subprocess.run([*make, f"VENV={tmp_path}/venv", "install"], capture_output=True, text=True).stdout
    assert f"python3.12 \\\n\t-m venv {tmp_path}/venv" in shown
    for name in ("python3", "python3.12"):
        (tmp_path / "bin" / name).unlink()
    done = subprocess.run([*make, f"VENV={tmp_path}/venv", "install"], capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "expected Python 3.11 to 3.14 on PATH; received none; install one, or add PYTHON=/path/to/python" in done.stderr
    )

"""The kernels alone, on arrays of odd sizes, in a build with AddressSanitizer (kernels.cpp)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_operators import KERNELS

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("kernels")
    configure = ["cmake", "-S", str(HERE), "-B", str(build), "-DT2R_SANITIZE=address", "-DCMAKE_BUILD_TYPE=None"]
    for command in ([*configure, "-DCMAKE_CXX_FLAGS=-O1"], ["cmake", "--build", str(build), "--target", "kernels"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return build / "kernels"


@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_beyond_an_array_is_touched(kernels: str, program: Path) -> None:
    """All sums are right too, for any number of rows and columns."""
    done = subprocess.run([program], env={**os.environ, "T2R_KERNELS": kernels}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

"""A build with AddressSanitizer and UndefinedBehaviorSanitizer: the kernels alone, then whatever the provider claims.

With T2R_FUZZ_RUNS, more random graphs (test_random_graphs.py). With T2R_COUNTED, a build that counts lines and branches
in place of that one (.ci/covered.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime_ep_t2r as plugin
import pytest
from test_operators import KERNELS

HERE = Path(__file__).parents[1]
TINY = HERE.parents[1] / "models" / "tiny"
COUNTED = os.environ.get("T2R_COUNTED")


def done(command: list[str], **environment: str) -> None:
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COUNTED:
        return Path(COUNTED)
    folder = tmp_path_factory.mktemp("address")
    configure = ["cmake", "-S", str(HERE), "-B", str(folder), "-DT2R_SANITIZE=address", "-DCMAKE_BUILD_TYPE=None"]
    done([*configure, "-DCMAKE_CXX_FLAGS=-O1"])
    return folder


def built(folder: Path, target: str) -> None:
    done(["cmake", "--build", str(folder), "--parallel", "2", "--target", target])


@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_beyond_an_array_is_touched(kernels: str, build: Path) -> None:
    """All sums are right too, for any number of rows and columns."""
    built(build, "kernels")
    done([str(build / "kernels")], T2R_KERNELS=kernels)


def test_order_of_operations(build: Path) -> None:
    built(build, "schedule")
    program = str(build / "schedule")
    done([program])
    assert subprocess.run([program, "broken"], capture_output=True).returncode == 1


def test_files_that_are_cut_off_or_changed(build: Path) -> None:
    """Each is read and planned, or refused; nothing beyond it is touched (web/onnx_file.cpp)."""
    built(build, "onnx_file")
    names = ("w4", "prefill", "tiny-hybrid", "fails")
    done([str(build / "onnx_file"), *(str(TINY / f"{name}.onnx") for name in names)])


def preloaded(folder: Path, library: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with sanitizers and the built library as the package."""
    package = folder / library / plugin.__name__
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(plugin.__file__, package)
    link = package / "libt2r_provider.so"
    link.unlink(missing_ok=True)
    link.symlink_to(folder / f"lib{library}.so")
    compiler = os.environ.get("CXX", "c++")
    loaded = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in (() if COUNTED else ("libasan.so", "libstdc++.so"))  # libasan must find the latter's exceptions
    ]
    environment = {
        "LD_PRELOAD": " ".join(path.strip() for path in loaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    return subprocess.run([sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.timeout(1600)  # the build takes minutes where other environments run
def test_nothing_beyond_a_value_is_touched(build: Path) -> None:
    """Runs other tests again, in a Python process with preloaded sanitizers."""
    built(build, "t2r_provider")
    tests = [
        str(HERE / "tests" / f"test_{name}.py") for name in ("claims", "backend", "caches", "windows", "random_graphs")
    ]
    ended = preloaded(build, "t2r_provider", "-m", "pytest", "-q", "--timeout", "0", *tests)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("kind", ["memory", "onnxruntime"])
def test_each_fault(kind: str, build: Path) -> None:
    """An allocation, or a call of ONNX Runtime, that fails is an error of the opening or the run; nothing leaks."""
    built(build, "faulty")
    graphs = [str(TINY / f"{name}.onnx") for name in ("tiny", "tiny-hybrid", "w4")]
    ended = preloaded(build, "faulty", str(HERE / "tests" / "planned_faults.py"), kind, "right", *graphs)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    counts = [int(count) for count in ended.stdout.split()]
    assert len(counts) == 6
    assert min(counts) >= 50, counts


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("mistake, said", [("leaks", "allocations are left"), ("swallows", "1: it succeeded")])
def test_wrong_answers_are_found(mistake: str, said: str, build: Path) -> None:
    built(build, "faulty")
    script = str(HERE / "tests" / "planned_faults.py")
    ended = preloaded(build, "faulty", script, "memory", mistake, str(TINY / "w4.onnx"))
    assert ended.returncode == 1
    assert said in ended.stderr

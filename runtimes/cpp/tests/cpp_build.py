"""Builds the C++ runtime and runs its programs. `make test-cpp`, or, with ONNX Runtime's headers in a folder of yours:

T2R_ONNXRUNTIME_ROOT=FOLDER pytest runtimes/cpp/tests
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime
import pytest

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
GOLDEN = ROOT / "models" / "tiny"
PAGE = (ROOT / "docs" / "embedding.md").read_text("utf-8")
BUILDS = Path(os.environ.get("T2R_CPP_BUILD") or ROOT / "build" / "cpp")
STRICT = os.environ.get("T2R_STRICT") == "1"
SANITIZERS = {  # environment of runs; leaks.txt ignores what libraries keep until exit
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "LSAN_OPTIONS": f"suppressions={HERE / 'tests' / 'leaks.txt'}:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # ThreadSanitizer sees only the unlocking of ONNX Runtime's own mutexes
    "TSAN_OPTIONS": f"suppressions={HERE / 'tests' / 'races.txt'}:report_mutex_bugs=0",
}
# options of builds with a sanitizer or with counters
CHECKED = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-Og")  # compiles in half the time of -O1

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def onnxruntime_options() -> list[str]:
    """CMake options for ONNX Runtime: the library of the Python package, and headers of $T2R_ONNXRUNTIME_ROOT."""
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    options = [f"-DT2R_ONNXRUNTIME_LIBRARY={library}"]
    if root := os.environ.get("T2R_ONNXRUNTIME_ROOT"):
        options.append(f"-DT2R_ONNXRUNTIME_ROOT={root}")
    return options


def headers() -> list[str]:
    """Compiler options for ONNX Runtime's headers, if $T2R_ONNXRUNTIME_ROOT is set."""
    root = os.environ.get("T2R_ONNXRUNTIME_ROOT")
    return [f"-I{Path(root) / 'include' / part}" for part in ("", "onnxruntime")] if root else []


def clang() -> Path:
    """A compiler for other systems and for fuzzers. Skips the test if there is none."""
    unpacked = Path(os.environ.get("T2R_CLANG", "/nowhere")) / "usr/bin/clang++-14"
    if not (shutil.which("clang++") or unpacked.exists()):
        (pytest.fail if STRICT else pytest.skip)("no clang++ on the PATH, nor unpacked where $T2R_CLANG says")
    return ROOT / ".ci" / "clang++"


def build(name: str, *options: str, source: Path = HERE, targets: Sequence[str] = ("all",)) -> Path:
    """Build and return the folder: `name` in $T2R_CPP_BUILD, or an absolute path. Locked against other processes."""
    folder = BUILDS / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", str(source), "-B", str(folder), *onnxruntime_options(), *options]
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2", "--target", *targets]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return folder


def fenced(language: str) -> str:
    """The first block of a language in docs/embedding.md."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"nothing in {language}"
    return found[1]

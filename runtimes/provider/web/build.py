"""Compile the provider to WebAssembly with zig: build.py OUT, runtimes/js/src/t2r.wasm by default.

With --test, compile tests/kernels.cpp with the same kernels to OUT instead, a program for WASI.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROVIDER = HERE.parent
OUTSIDE = ("provider", "ort_graph", "ort_session", "team")  # these need ONNX Runtime, or threads
OTHER_KERNELS = "kernels_"  # of other processors
WARNINGS = ("-Wall", "-Wextra", "-Werror")
MATH = ("-fno-math-errno", "-fno-trapping-math")  # as in CMakeLists.txt
FLAGS = (
    "-target",
    "wasm32-wasi",
    "-std=c++17",
    "-O3",
    "-s",
    "-msimd128",
    *MATH,
    *WARNINGS,
    f"-ffile-prefix-map={PROVIDER}/=",
)
# zig's C++ library cannot unwind: module.cpp says what a throw does instead
MODULE = ("-mexec-model=reactor", "-fexceptions", "-Wl,--export=__stack_pointer", "-Wl,-z,stack-size=1048576")
TEST = ("-fno-exceptions", f"-I{PROVIDER / 'src'}")


def sources(test: bool) -> list[Path]:
    """The files to compile."""
    if test:
        return [PROVIDER / "tests" / "kernels.cpp", PROVIDER / "src" / "kernels.cpp", HERE / "kernels_wasm.cpp"]
    all_files = sorted((PROVIDER / "src").glob("*.cpp"))
    core = [file for file in all_files if file.stem not in OUTSIDE and not file.stem.startswith(OTHER_KERNELS)]
    return [*core, *sorted(HERE.glob("*.cpp"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=PROVIDER.parent / "js" / "src" / "t2r.wasm")
    parser.add_argument("--test", action="store_true")
    given = parser.parse_args()
    if importlib.util.find_spec("ziglang") is None:
        parser.error("expected the Python package ziglang; received none; install it with pip")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    zig, options = (sys.executable, "-m", "ziglang", "c++"), TEST if given.test else MODULE
    return subprocess.run((*zig, *FLAGS, *options, *sources(given.test), "-o", given.out), check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())

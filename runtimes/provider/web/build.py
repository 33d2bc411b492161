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
# these need ONNX Runtime, threads, or other processors
LEFT_OUT = ("provider", "ort_graph", "ort_session", "team", "kernels_base")
PROCESSORS = ("avx2", "avx512", "avxvnni", "neon", "dotprod")
FLAGS = ("-target", "wasm32-wasi", "-std=c++17", "-O3", "-s", "-msimd128", "-Wall", "-Wextra", "-Werror")
FLAGS += ("-fno-math-errno", "-fno-trapping-math", f"-ffile-prefix-map={PROVIDER}/=")
# zig's C++ library cannot unwind: module.cpp says what a throw does instead
MODULE = ("-mexec-model=reactor", "-fexceptions", "-Wl,--export=__stack_pointer", "-Wl,-z,stack-size=1048576")
TEST = ("-fno-exceptions", f"-I{PROVIDER / 'src'}")


def sources(test: bool) -> list[Path]:
    """The files to compile."""
    if test:
        return [PROVIDER / "tests" / "kernels.cpp", PROVIDER / "src" / "kernels.cpp", HERE / "kernels_wasm.cpp"]
    left_out = {*LEFT_OUT, *(f"kernels_{name}" for name in PROCESSORS)}
    core = [file for file in sorted((PROVIDER / "src").glob("*.cpp")) if file.stem not in left_out]
    return [*core, *sorted(HERE.glob("*.cpp"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=PROVIDER.parent / "js" / "src" / "t2r.wasm")
    parser.add_argument("--test", action="store_true")
    given = parser.parse_args()
    if importlib.util.find_spec("ziglang") is None:
        print("expected the Python package ziglang; received none; install it with pip", file=sys.stderr)
        return 2
    given.out.parent.mkdir(parents=True, exist_ok=True)
    options = TEST if given.test else MODULE
    command = [sys.executable, "-m", "ziglang", "c++", *FLAGS, *options, *map(str, sources(given.test)), "-o", str(given.out)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

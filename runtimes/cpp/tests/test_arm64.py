"""libt2r, the Python runtime and our execution provider on 64-bit ARM, emulated: tox run -e arm64.

$T2R_ARM64 is a folder with Debian's cross compiler in cross/, its Python for arm64 in python/, its qemu-user in qemu/
and, in packages/, compiled packages for arm64 that pip installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from cpp_build import GOLDEN, ROOT, STRICT, build

import t2r_runtime
from golden.mutants import only

PROVIDER = ROOT / "runtimes" / "provider"
OBJECTS = Path("CMakeFiles", "t2r_provider.dir", "src")  # in a build of it
ARM64 = Path(os.environ.get("T2R_ARM64", "/nowhere"))
SYSROOT = ARM64 / "cross"
COMPILER = SYSROOT / "usr" / "bin" / "aarch64-linux-gnu-g++-12"
CASES = {case["case"]: case["kind"] for case in json.loads((GOLDEN / "index.json").read_text())["cases"]}
PLAIN, NEWER = "cortex-a72", "cortex-a76"  # the second has dot products of int8 and arithmetic of float16, not i8mm
DIFFERENT = ("int8", "w8", "w4", "sampling-states")  # cases for which ONNX Runtime has other kernels there
LIBRARY = f"libonnxruntime.so.{onnxruntime.__version__}"
# the conformance program with other arguments of Decoder and Translator
PROGRAM = """
import functools, sys
from t2r_runtime import conformance
for name in ("Decoder", "Translator"):
    setattr(conformance, name, functools.partial(getattr(conformance, name), **eval(sys.argv[2])))
sys.exit(conformance.main(sys.argv[1]))
"""


@pytest.fixture(scope="module", autouse=True)
def unpacked() -> None:
    if not ARM64.is_dir():
        (pytest.fail if STRICT else pytest.skip)("no cross compiler and emulator where $T2R_ARM64 says")


def built(name: str, source: Path, *options: str, target: str) -> Path:
    options += ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_SYSROOT={SYSROOT}")
    compilers = f"-DCMAKE_CXX_COMPILER={COMPILER}", f"-DCMAKE_C_COMPILER={str(COMPILER).replace('g++', 'gcc')}"
    return build(name, *options, *compilers, source=source, targets=[target])


@pytest.fixture(scope="module")
def conformance() -> Path:
    library = ARM64 / "packages" / "onnxruntime" / "capi" / LIBRARY
    options = f"-DT2R_ONNXRUNTIME_LIBRARY={library}"
    return built("arm64", ROOT / "runtimes" / "cpp", options, target="t2r_conformance") / "t2r_conformance"


@pytest.fixture(scope="module")
def provider() -> Path:
    return built("arm64-provider", PROVIDER, target="t2r_provider")


@pytest.fixture(scope="module")
def plugin(provider: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package onnxruntime_ep_t2r."""
    folder = tmp_path_factory.mktemp("plugin")
    package = Path(shutil.copytree(PROVIDER / "onnxruntime_ep_t2r", folder / "onnxruntime_ep_t2r"))
    shutil.copy(provider / "libt2r_provider.so", package)
    return folder


def emulated(*command: object, processor: str = PLAIN, status: int = 0, **environment: str) -> str:
    """Run a program for arm64 and return its output."""
    place = {"QEMU_LD_PREFIX": str(SYSROOT / "usr" / "aarch64-linux-gnu"), "QEMU_CPU": processor}
    words = [str(part) for part in (ARM64 / "qemu" / "usr" / "bin" / "qemu-aarch64", *command)]
    done = subprocess.run(words, env={**os.environ, **place, **environment}, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == status, (done.returncode, done.stdout[-6000:], done.stderr[-3000:])
    return done.stdout


def python(*arguments: object, plugin: Path | None = None, processor: str = PLAIN, status: int = 0) -> str:
    """Run Debian's Python: with packages of py311, and those for arm64 in place of compiled ones."""
    home = ARM64 / "python"
    libraries = [str(home / part / "aarch64-linux-gnu") for part in ("lib", "usr/lib")]
    ours = (Path(t2r_runtime.__file__).parents[1], ROOT / "tests")
    packages = [*([plugin] if plugin else []), ARM64 / "packages", *ours]
    environment = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PYTHONHOME": str(home / "usr"),
        "PYTHONPATH": ":".join(map(str, packages)),
    }
    program = home / "usr" / "bin" / f"python3.{sys.version_info[1]}"
    return emulated(program, *arguments, processor=processor, status=status, **environment)


def passed(cases: list[str]) -> str:
    return "".join(f"ok {case}\n" for case in cases) + f"{len(cases)} passed, 0 failed\n"


def test_golden_files_in_cpp(conformance: Path) -> None:
    assert emulated(conformance, GOLDEN) == passed([*CASES])


def test_golden_files_of_other_kernels(conformance: Path, tmp_path: Path) -> None:
    only(Path(shutil.copytree(GOLDEN, tmp_path / "tiny")), *DIFFERENT)
    assert emulated(conformance, tmp_path / "tiny", processor=NEWER) == passed([*DIFFERENT])


def test_golden_files_in_python() -> None:
    machine = "import platform, onnxruntime; print(platform.machine(), onnxruntime.__version__, flush=True)"
    assert python("-c", machine + PROGRAM, GOLDEN, {}) == f"aarch64 {onnxruntime.__version__}\n" + passed([*CASES])


def test_golden_files_on_our_provider(plugin: Path, tmp_path: Path) -> None:
    """All but those that it leaves to others: int8, and states of float16."""
    kinds = ("trace", "sampling", "calls", "snapshot", "translator")
    cases = [case for case, kind in CASES.items() if kind in kinds and case not in ("int8", "sampling-states")]
    only(Path(shutil.copytree(GOLDEN, tmp_path / "tiny")), *cases)
    assert python("-c", PROGRAM, tmp_path / "tiny", {"provider": "t2r"}, plugin=plugin) == passed(cases)


@pytest.fixture(scope="module")
def kernels(provider: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of the provider's own objects."""
    program = tmp_path_factory.mktemp("kernels") / "kernels"
    made = [provider / OBJECTS / f"kernels{part}.cpp.o" for part in ("", "_base", "_neon", "_dotprod", "_i8mm")]
    command = [COMPILER, f"--sysroot={SYSROOT}", "-std=c++17", "-O1", f"-I{PROVIDER / 'src'}"]
    subprocess.run([*command, PROVIDER / "tests" / "kernels.cpp", *made, "-o", program], check=True, timeout=300)
    return program


@pytest.mark.parametrize(
    "table, processor",
    [("base", PLAIN), ("neon", PLAIN), ("dotprod", "max"), ("", PLAIN), ("", NEWER), ("", "max")],
)
def test_kernels_of_our_provider(kernels: Path, table: str, processor: str) -> None:
    """Against sums in double precision. Without a table's name, the processor's best."""
    assert emulated(kernels, processor=processor, T2R_KERNELS=table) == ""


def test_operators_of_our_provider(plugin: Path) -> None:
    """Against ONNX Runtime's, a third of the cases in each turn (selection.py), for emulation takes minutes.

    Products of quantized weights, which the kernels above are tested for, are left out: at accuracy_level 4 ONNX
    Runtime rounds no activation on Cortex-A72, and each row by one scale on A76.
    """
    tests = [PROVIDER / "tests" / f"test_{name}.py" for name in ("operators", "fused")]
    few = "not MatMulNBits and not added_to_a_product and not scales_in_float16 and not test_lesser_processors"
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "selection", "--timeout", "0")
    python("-m", "pytest", *quiet, "-k", few, *tests, plugin=plugin)


def test_int8_with_matrix_instructions(tmp_path: Path) -> None:
    """ONNX Runtime's int8 is another one with SME, unless the session does without KleidiAI. docs/quantization.md"""
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))
    only(folder, "int8")
    assert "FAILED int8" in python("-c", PROGRAM, folder, {}, processor="max", status=1)
    plain = {"session_config": {"mlas.disable_kleidiai": "1"}}
    assert python("-c", PROGRAM, folder, plain, processor="max") == passed(["int8"])

"""What verify does with archives that zig compiles for other platforms. cmake, zig and ONNX Runtime are small ones."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from installs import output, program, relist
from release import platforms
from release.files import hashes

NAMES = ("linux-aarch64", "macos-arm64")
ARM = "t2r-0.1.0-linux-aarch64.tar.gz"
# cmake keeps its options in its cache; cpack packs a library that says the platform of the options
CMAKE = """
import io, os, re, sys, tarfile
from pathlib import Path

words = sys.argv[1:]
if "-S" in words:
    folder = Path(words[words.index("-B") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("-D"))
    (folder / "CMakeCache.txt").write_text("".join(f"{name}:STRING={value}\\n" for name, value in options.items()))
elif Path(sys.argv[0]).name == "cpack":
    out = Path(words[words.index("-B") + 1])
    (out / "_CPack_Packages").mkdir(exist_ok=True)
    found = re.search("T2R_PLATFORM:STRING=(.*)", Path("CMakeCache.txt").read_text())
    name = f"t2r-0.1.0-{found[1] if found else 'linux-x86_64'}"
    with tarfile.open(out / f"{name}.tar.gz", "w") as packed:
        entry = tarfile.TarInfo(f"{name}/lib/libt2r.so")
        entry.size, entry.mtime = len(name), int(os.environ["SOURCE_DATE_EPOCH"])
        packed.addfile(entry, io.BytesIO(name.encode()))
elif "--version" in words:
    print("cmake version 3.25.1")
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a machine with such a cmake, a package ziglang, and wheels of ONNX Runtime."""
    folder = tmp_path_factory.mktemp("machine")
    for name in ("bin", "packages/ziglang", "packages/ziglang-1.2.3.dist-info"):
        (folder / name).mkdir(parents=True)
    for name in ("cmake", "cpack"):
        (folder / "bin" / name).write_text(f"#!{sys.executable}{CMAKE}")
        (folder / "bin" / name).chmod(0o755)
    (folder / "packages/ziglang/__init__.py").touch()
    (folder / "packages/ziglang-1.2.3.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: ziglang\nVersion: 1.2.3\n"
    )
    version = platforms.onnxruntime_version()
    described = f"onnxruntime-{version}.dist-info"
    for platform in (platforms.PLATFORMS[name] for name in NAMES):
        with zipfile.ZipFile(folder / f"onnxruntime-{version}-py3-none-{platform.tag}.whl", "w") as wheel:
            wheel.writestr(f"onnxruntime/capi/{platform.library.replace('1.*', version)}", platform.name)
            wheel.writestr(f"{described}/METADATA", f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n")
            wheel.writestr(f"{described}/WHEEL", f"Wheel-Version: 1.0\nTag: py3-none-{platform.tag}\n")
            wheel.writestr(f"{described}/RECORD", "")
    return {
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_INDEX": "1",
        "PACKAGES": str(folder / "packages"),
    }


def run(tree: Path, machine: Mapping[str, str], *words: object, code: int = 0, zig: bool = True) -> str:
    known = [str(tree / "runtimes"), *([machine["PACKAGES"]] if zig else ())]
    return program(tree, *words, code=code, **{**machine, "PYTHONPATH": os.pathsep.join(known)})


@pytest.fixture(scope="module")
def whole(copied: Path, machine: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "release"
    run(copied, machine, "build", out, "--only", "go", "c", "--platforms", *NAMES)
    return out


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "release"))


def test_platforms_are_built_again(copied: Path, machine: Mapping[str, str], folder: Path) -> None:
    lines = run(copied, machine, "verify", folder).splitlines()
    assert lines[3:] == ["go: built again, 4 files", "c: built again, 4 files"]
    assert '"ziglang": "1.2.3"' in (folder / "provenance.intoto.json").read_text("utf-8")


def test_damaged_archive_of_a_platform_is_refused(copied: Path, machine: Mapping[str, str], folder: Path) -> None:
    """Changed alone, and with all descriptions; only a second build sees the latter."""
    before = hashes(folder)
    content = (folder / ARM).read_bytes()
    at = content.index(b"t2r-0.1.0-linux-aarch64", 512)
    (folder / ARM).write_bytes(content[:at] + b"T" + content[at + 1 :])
    assert f"received changed: {ARM}; download" in run(copied, machine, "verify", folder, code=2)
    relist(folder, folder / ARM, before)
    received = (
        f"received others of {ARM} (t2r-0.1.0-linux-aarch64/lib/libt2r.so); the entry of {ARM} in sbom.cdx.json; "
    )
    assert f"{received}do not install it" in run(copied, machine, "verify", folder, code=2)


def test_platforms_without_zig_are_named(copied: Path, machine: Mapping[str, str], folder: Path) -> None:
    lines = run(copied, machine, "verify", folder, zig=False).splitlines()
    assert lines[4:] == [
        "c for linux-aarch64, macos-arm64: not built on this machine: expected the Python package ziglang; received "
        "none; install it with pip",
        "c: built again, 2 files",
        f"not compared with a second build: {ARM}, t2r-0.1.0-macos-arm64-not-run.tar.gz",
    ]


@pytest.mark.parametrize("target", ["release", "verify-release"])
def test_make_says_where_the_headers_are(target: str, copied: Path) -> None:
    """Builds for other platforms find ONNX Runtime's headers where that of this one does."""
    commands = output(copied, "make", "-n", target, "T2R_ONNXRUNTIME_ROOT=/opt/unpacked").splitlines()
    assert '--cmake="-DT2R_ONNXRUNTIME_ROOT=/opt/unpacked"' in commands[-1]

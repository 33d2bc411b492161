"""libt2r and our execution provider for arm64, Windows and macOS, compiled by zig: tox run -e platforms.

What a release has for Windows runs here in Debian's Wine, unpacked in $T2R_WINE; for arm64 in qemu-user, of
$T2R_ARM64 as in test_arm64.py; for macOS it is only read. zig's targets and ONNX Runtime's wheels are
in release/platforms.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cpp_build import BUILDS, GOLDEN, HERE, STRICT
from release import platforms
from test_arm64 import ARM64, CASES, emulated, passed

WINE = Path(os.environ.get("T2R_WINE", "/nowhere"))
OPTIONS = ("-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",)  # otherwise as in a release


@pytest.fixture(scope="module", autouse=True)
def unpacked() -> None:
    if importlib.util.find_spec("ziglang") is None:
        (pytest.fail if STRICT else pytest.skip)("no zig here: pip install ziglang")


def wine(folder: Path, *command: object) -> str:
    """Run a program for Windows in its folder and return its output."""
    programs = WINE / "usr" / "lib" / "wine"
    server = programs / "wineserver"  # Debian's is a script that looks in /usr/lib
    if not server.is_symlink():
        server.unlink()
        server.symlink_to("wineserver64")
    environment = {
        **os.environ,
        "WINEPREFIX": str(BUILDS / "wine"),
        "WINEDEBUG": "-all",
        "WINEPATH": str(WINE / "usr" / "x86_64-w64-mingw32" / "lib"),  # zlib1.dll
        "LD_LIBRARY_PATH": str(WINE / "usr" / "lib" / "x86_64-linux-gnu"),
    }
    words = [str(part) for part in (programs / "wine64", *command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=folder, timeout=900)
    assert done.returncode == 0, (done.returncode, done.stdout[-6000:], done.stderr[-3000:])
    return done.stdout.replace("\r\n", "\n")


def load_commands(library: Path) -> Iterator[tuple[int, str]]:
    """The kind of each load command of a Mach-O file, and the text in it."""
    content = library.read_bytes()
    magic, _, _, _, count = struct.unpack_from("<5I", content)
    assert magic == 0xFEEDFACF, hex(magic)
    place = 32
    for _ in range(count):
        kind, size = struct.unpack_from("<2I", content, place)
        [start] = struct.unpack_from("<I", content, place + 8)
        yield kind & 0xFF, content[place + min(start, size) : place + size].split(b"\0")[0].decode("latin-1")
        place += size


def on_windows(built: Path, plugin: Path, runtime: Path) -> None:
    described = subprocess.run(["objdump", "-p", built / "libt2r.dll"], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"DLL Name: (.*)", described.stdout))
    assert {name for name in needed if not name.startswith("api-ms-win-crt-")} == {"KERNEL32.dll", "onnxruntime.dll"}
    table = described.stdout.split("[Ordinal/Name Pointer] Table")[1].split("\n\n")[0]
    declared = re.findall(r"^T2R_API [^;(]*?(t2r_\w+)\(", (HERE / "include" / "t2r.h").read_text("utf-8"), re.MULTILINE)
    assert sorted(line.split()[-1] for line in table.strip().splitlines()) == sorted(declared)
    if not WINE.is_dir():
        (pytest.fail if STRICT else pytest.skip)("no Wine where $T2R_WINE says")
    shutil.copy(runtime, built)
    assert wine(built, "t2r_conformance.exe", GOLDEN) == passed([*CASES])
    lines = wine(built, "platform.exe", GOLDEN, plugin).splitlines()
    assert [line.split()[0] for line in lines] == ["tiny", "gated", "window", "w4"]


def on_macos(built: Path, plugin: Path, runtime: Path) -> None:
    """Libraries that need nothing but the system's and ONNX Runtime's, beside them, and are signed."""
    loaded, own_name, search_path, signature = 0x0C, 0x0D, 0x1C, 0x1D
    commands = list(load_commands(built / "libt2r.dylib"))
    names = {text for kind, text in commands if kind == loaded}
    assert names == {"/usr/lib/libSystem.B.dylib", *(text for kind, text in load_commands(runtime) if kind == own_name)}
    assert [text for kind, text in commands if kind == own_name] == ["@rpath/libt2r.0.1.dylib"]
    assert [text for kind, text in commands if kind == search_path] == ["@loader_path"]
    for library in (built / "libt2r.dylib", plugin):
        assert signature in {kind for kind, _ in load_commands(library)}, library
    assert {text for kind, text in load_commands(plugin) if kind == loaded} == {"/usr/lib/libSystem.B.dylib"}


def on_arm64(built: Path, plugin: Path, runtime: Path) -> None:
    if not ARM64.is_dir():
        (pytest.fail if STRICT else pytest.skip)("no emulator where $T2R_ARM64 says")
    beside = f"{built / 'onnxruntime'}:{built}"
    assert emulated(built / "t2r_conformance", GOLDEN, LD_LIBRARY_PATH=beside) == passed([*CASES])
    lines = emulated(built / "platform", GOLDEN, plugin, LD_LIBRARY_PATH=beside).splitlines()
    assert [line.split()[0] for line in lines] == ["tiny", "gated", "window", "w4"]


CHECKS = {"linux-aarch64": on_arm64, "windows-x86_64": on_windows, "macos-arm64": on_macos}


# one test for each, so that a turn of CI builds one of them
@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_built_and_run(name: str, tmp_path: Path) -> None:
    platform = platforms.PLATFORMS[name]
    folder = BUILDS / "platforms" / name
    headers = (f"-DT2R_ONNXRUNTIME_ROOT={os.environ.get('T2R_ONNXRUNTIME_ROOT', '')}",)
    targets = ("t2r", "t2r_conformance", "platform")
    built = platforms.libt2r(platform, folder, *OPTIONS, *headers, "-DCMAKE_INSTALL_LIBDIR=lib", targets=targets)
    plugin = platforms.provider(platform, folder, *OPTIONS)
    runtime = platforms.onnxruntime(platform, folder)
    subprocess.run(["cmake", "--install", built, "--prefix", tmp_path], check=True, capture_output=True)
    installed = {path.name for path in tmp_path.rglob("*") if path.parent.name in ("lib", "bin")}
    CHECKS[name](built, plugin, runtime)
    # without debugging information, of which zig's C++ library alone has 14 MB
    libraries = [plugin, *(path for path in built.glob("libt2r.*") if path.suffix != ".a")]
    assert max(path.stat().st_size for path in libraries) < 2_000_000, libraries
    assert (
        installed
        >= {
            "linux-aarch64": {"libt2r.so", "libt2r.so.0.1", "libonnxruntime.so.1"},
            "windows-x86_64": {"libt2r.dll", "libt2r.dll.a", "onnxruntime.dll", "onnxruntime.lib"},
            "macos-arm64": {"libt2r.dylib", "libt2r.0.1.dylib", "libonnxruntime.1.dylib"},
        }[name]
    )


def test_every_platform_is_checked() -> None:
    ran = {name for name, platform in platforms.PLATFORMS.items() if platform.ran}
    assert {*CHECKS} == {*platforms.PLATFORMS} and ran == {"linux-aarch64", "windows-x86_64"}

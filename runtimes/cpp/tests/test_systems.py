"""CMake for macOS and Windows: only configured, as this machine's compiler cannot build for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cpp_build import HERE

TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME {})
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_INSTALL_NAME_TOOL /bin/true)
set(CMAKE_RC_COMPILER /bin/true)
"""
SYSTEMS = {  # per system: installed files (folder, kind, name)
    "Darwin": (
        ("lib", "FILE", "libonnxruntime.1.32.0.dylib"),
        ("lib", "SHARED_LIBRARY", "libt2r.dylib"),
    ),
    "Windows": (
        ("lib", "FILE", "onnxruntime.lib"),
        ("bin", "FILE", "onnxruntime.dll"),
        ("bin", "SHARED_LIBRARY", "libt2r.dll"),
    ),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_is_configured(tmp_path: Path, system: str) -> None:
    """ONNX Runtime is installed beside the library, which finds it there and exports only t2r.h."""
    (tmp_path / "toolchain.cmake").write_text(TOOLCHAIN.format(system))
    (tmp_path / "sw_vers").write_text("#!/bin/sh\necho 14.0\n")  # replaces the macOS tool, which CMake runs
    (tmp_path / "sw_vers").chmod(0o755)
    beside = [tmp_path / name for _, kind, name in SYSTEMS[system] if kind == "FILE"]
    for path in beside:
        path.write_text("@rpath/libonnxruntime.1.dylib\n")  # the name in the library of macOS
    options = [
        f"-DT2R_ONNXRUNTIME_LIBRARY={beside[0]}",
        f"-DT2R_ONNXRUNTIME_ROOT={os.environ.get('T2R_ONNXRUNTIME_ROOT', '')}",
    ]
    options += [
        f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}",
        "-DT2R_TESTS=OFF",
        "-DCMAKE_INSTALL_LIBDIR=lib",
    ]
    command = ["cmake", "-G", "Unix Makefiles", "-S", str(HERE), "-B", str(tmp_path / "built"), *options]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    installs = (tmp_path / "built" / "cmake_install.cmake").read_text()
    for folder, kind, name in SYSTEMS[system]:
        place = tmp_path if kind == "FILE" else tmp_path / "built"
        renamed = 'RENAME "libonnxruntime.1.dylib" ' if (system, kind) == ("Darwin", "FILE") else ""
        assert f'PREFIX}}/{folder}" TYPE {kind} {renamed}FILES "{place / name}"' in installs, name
    if system == "Darwin":
        link = (tmp_path / "built" / "CMakeFiles" / "t2r.dir" / "link.txt").read_text()
        assert '-add_rpath "@loader_path"' in installs
        assert "-install_name @rpath/libt2r." in link and "-exported_symbol,_t2r_*" in link

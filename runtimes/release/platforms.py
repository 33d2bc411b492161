"""The platforms that zig compiles libt2r and our execution provider for, against ONNX Runtime's wheels from PyPI."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.stage import date
from release.versions import ROOT


@dataclass(frozen=True)
class Platform:
    name: str  # as in the names of archives
    target: str  # zig's
    tag: str  # of wheels: ONNX Runtime's, and that of our provider
    library: str  # pattern of ONNX Runtime's library in its wheel
    provider: str  # file of our provider
    ran: str  # where the golden files passed; empty: built, not run

    @property
    def label(self) -> str:
        """The name in file names, which say if it was never run."""
        return self.name if self.ran else f"{self.name}-not-run"


PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform
    for platform in (
        Platform(
            "linux-aarch64",
            "aarch64-linux-gnu.2.28",
            "manylinux_2_28_aarch64",
            "libonnxruntime.so.1.*",
            "libt2r_provider.so",
            "Linux on x86-64, qemu-user 10",
        ),
        Platform(
            "windows-x86_64",
            "x86_64-windows-gnu",
            "win_amd64",
            "onnxruntime.dll",
            "libt2r_provider.dll",
            "Linux on x86-64, Wine 8",
        ),
        Platform(
            "macos-arm64",
            "aarch64-macos.14.0",
            "macosx_14_0_arm64",
            "libonnxruntime.1.*.dylib",
            "libt2r_provider.so",
            "",
        ),
    )
}


def run(*command: str | Path, **environment: str) -> None:
    """Run a program.

    Raises:
        RuntimeError: it failed; the message has its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError(f"expected {' '.join(words)} to succeed; received:\n{done.stdout}{done.stderr}")


def onnxruntime_version() -> str:
    """The version of this environment's ONNX Runtime, which other platforms get too."""
    return importlib.metadata.version("onnxruntime")


def onnxruntime(platform: Platform, folder: Path) -> Path:
    """Unpack the wheel of ONNX Runtime for a platform; returns the path of the library."""
    version = onnxruntime_version()
    place = folder / f"onnxruntime-{version}"
    if not place.is_dir():
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
        run(*command, "--platform", platform.tag, "--dest", folder, f"onnxruntime=={version}")
        [wheel] = folder.glob(f"onnxruntime-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name
                for name in archive.namelist()
                if re.fullmatch(r"onnxruntime/([^/]*|capi/[^/]*(so|dll|dylib)[^/]*)", name)
            ]
            archive.extractall(folder / "part", names)
        (folder / "part" / "onnxruntime").rename(place)
    [library] = (place / "capi").glob(platform.library)
    return library


def build(
    platform: Platform, source: Path, folder: Path, *options: str | Path, targets: Sequence[str] = ("all",)
) -> None:
    """Build a project of cmake with zig in `folder`. The folder beside it, zig, keeps zig's C and C++ libraries.

    Raises:
        ValueError: this environment has no zig.
        RuntimeError: cmake or zig failed.
    """
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise ValueError("expected the Python package ziglang; received none; install it with pip")
    cache = str(folder.parent / "zig")
    kept = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, "SOURCE_DATE_EPOCH": str(date())}
    toolchain = ROOT / "runtimes" / "cpp" / "cmake" / "zig.cmake"
    zig = (f"-DT2R_ZIG={Path(found.origin).with_name('zig')}", f"-DT2R_ZIG_TARGET={platform.target}")
    run("cmake", "-S", source, "-B", folder, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", *zig, *options, **kept)
    run("cmake", "--build", folder, "--parallel", "2", "--target", *targets, **kept)


def libt2r(platform: Platform, folder: Path, *options: str | Path, targets: Sequence[str] = ("t2r",)) -> Path:
    """Build libt2r in `folder`; returns the folder of the build."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "libt2r"
    options = (
        *options,
        f"-DT2R_ONNXRUNTIME_LIBRARY={onnxruntime(platform, folder)}",
        f"-DT2R_PLATFORM={platform.label}",
    )
    build(platform, ROOT / "runtimes" / "cpp", place, *options, targets=targets)
    return place


def provider(platform: Platform, folder: Path, *options: str) -> Path:
    """Build our execution provider in `folder`; returns the path of the library."""
    build(platform, ROOT / "runtimes" / "provider", folder / "provider", *options)
    return folder / "provider" / platform.provider


def wheel(native: Path, library: Path, platform: Platform, out: Path) -> Path:
    """Write a copy of this system's wheel of the provider with the library of another one."""
    with zipfile.ZipFile(native) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    label = record.replace("RECORD", "WHEEL")
    del files[record]
    for name in [name for name in files if re.search(r"t2r_provider\.\w+$", name)]:
        del files[name]
    files[f"onnxruntime_ep_t2r/{library.name}"] = library.read_bytes()
    files[label] = re.sub(rb"(?m)^Tag: py3-none-.*$", f"Tag: py3-none-{platform.tag}".encode(), files[label])
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(content)))
    writer.writerow((record, "", ""))
    files[record] = rows.getvalue().encode()
    made = out / f"{native.name.rsplit('-', 1)[0]}-{platform.tag}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(date())[:6]), content, zipfile.ZIP_DEFLATED)
    return made

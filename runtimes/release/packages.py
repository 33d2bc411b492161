"""The packages of a release and how each is built."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release import archives, platforms
from release.stage import LEGAL, date, moment, stage
from release.versions import ROOT

Command = Sequence[str | Path]
SAME = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}  # on every machine, for the same bytes
# platforms whose libraries the jar gets, as Java names them, and these libraries
JAVA_PLATFORMS = {("Linux", "x86_64"): "linux-x86-64", ("Linux", "aarch64"): "linux-arm64"}
JAVA_LIBRARIES = ("libt2r.so", "libonnxruntime.so.1")


@dataclass(frozen=True, kw_only=True)
class Tools:
    """How to call the build tools on this machine."""

    jdk: Command = ()  # command prefix for javac and jar
    cmake: Command = ()  # options of cmake, such as the path of ONNX Runtime
    build: Path = ROOT / "build" / "cpp" / "libt2r"  # build folder of libt2r, reused if present
    others: Sequence[platforms.Platform] = ()  # besides this one; their build folders are beside that folder

    def folder(self, other: platforms.Platform) -> Path:
        """The folder for the builds for another platform."""
        return self.build.parent / other.name


@dataclass(frozen=True)
class Build:
    """The build of one package: its staged files, and the folder for its artifacts."""

    stage: Path
    out: Path
    version: str
    tools: Tools

    def run(self, *command: str | Path, folder: Path | None = None, **environment: str) -> None:
        """Run a program in the staged folder, or in `folder`.

        Raises:
            RuntimeError: there is no such program, or it failed; the message has its output.
        """
        words = [str(word) for word in command]
        known = {**os.environ, **SAME, "SOURCE_DATE_EPOCH": str(date()), **environment}
        if shutil.which(words[0], path=known["PATH"]) is None:
            raise RuntimeError(f"expected the program {words[0]} on the PATH; received none; install it")
        done = subprocess.run(
            words, cwd=folder or self.stage, env=known, umask=0o022, capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            raise RuntimeError(f"expected {' '.join(words)} to succeed; received:\n{done.stdout}{done.stderr}")


@dataclass(frozen=True)
class Package:
    folder: str  # relative to the repository
    kind: str  # type of its package URL
    build: Callable[[Build], None]
    files: Sequence[str] = (".",)  # paths in the folder
    name: str = "t2r"
    contains: Sequence[str] = ()  # keys of bill.CONTAINED


def python(build: Build) -> None:
    """Build a source distribution, and the wheel from it."""
    before = set(build.out.glob("*.tar.gz"))
    build.run(sys.executable, "-m", "build", "--no-isolation", "--outdir", build.out, build.stage)
    for path in set(build.out.glob("*.tar.gz")) - before:
        archives.undated(path)


def provider(build: Build) -> None:
    """The same, and copies of the wheel with the libraries of other platforms."""
    python(build)
    for each in build.tools.others:
        [native] = build.out.glob("onnxruntime_ep_t2r-*-linux_*.whl")
        library = platforms.provider(each, build.tools.folder(each))
        platforms.wheel(native, library, each, build.out)


def npm(build: Build) -> None:
    """Pack the JavaScript package; a TypeScript compiler, installed above the stage, generates its types."""
    above = build.stage.parent
    versions = json.loads((build.stage / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    quiet = ("--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel", "error")
    compiler = [f"{name}@{versions[name]}" for name in ("typescript", "@types/node")]
    build.run("npm", "install", "--prefix", above, "--ignore-scripts", *quiet, *compiler, folder=above)
    path = os.pathsep.join([str(above / "node_modules" / ".bin"), os.environ["PATH"]])
    build.run("npm", "pack", "--silent", "--pack-destination", build.out, PATH=path)


def cargo(build: Build) -> None:
    """Pack the crate. `--no-verify`: a test compiles it in a program that links libt2r."""
    place = build.stage.with_name("target")
    command = ("cargo", "package", "--no-verify", "--allow-dirty", "--offline", "--quiet", "--target-dir", place)
    build.run(*command)
    shutil.copy(place / "package" / f"t2r-{build.version}.crate", build.out)


def go(build: Build) -> None:
    archives.go_module(build.stage, build.out / "go", build.version)


def java(build: Build) -> None:
    """Build the jar, with libt2r and ONNX Runtime for this system in it."""
    place, natives, prefix = (build.stage.with_name(name) for name in ("built", "natives", "installed"))
    here = platform.system(), platform.machine()
    if here not in JAVA_PLATFORMS:
        raise RuntimeError(f"expected Linux on x86-64 or arm64 for the jar; received {here}; leave java out by --only")
    _build_libt2r(build)
    build.run("cmake", "--install", build.tools.build, "--strip", "--prefix", prefix)
    (natives / JAVA_PLATFORMS[here]).mkdir(parents=True)
    for name in JAVA_LIBRARIES:
        shutil.copy(prefix / "lib" / name, natives / JAVA_PLATFORMS[here])
    for path in prefix.glob("share/doc/t2r/onnxruntime-*"):
        shutil.copy(path, build.stage)
    programs = [f"{name.upper()}={' '.join(map(str, [*build.tools.jdk, name]))}" for name in ("javac", "jar")]
    variables = (f"OUT={place}", f"NATIVES={natives}", f"VERSION={build.version}", f"DATE={moment()}")
    build.run("make", "jar", *variables, *programs)
    shutil.copy(place / "t2r.jar", build.out / f"t2r-{build.version}.jar")


def c(build: Build) -> None:
    """Write the sources, a relocatable archive for this system and, on Debian, a package for /opt/t2r."""
    archives.sources(build.stage, build.out, f"t2r-{build.version}-source")
    _build_libt2r(build)
    options = (*build.tools.cmake, "-DT2R_TESTS=OFF", "-DCMAKE_INSTALL_LIBDIR=lib")
    place = build.tools.build
    others = [platforms.libt2r(each, build.tools.folder(each), *options) for each in build.tools.others]
    for folder in (place, *others):
        build.run("cpack", "-B", build.out, folder=folder)
    shutil.rmtree(build.out / "_CPack_Packages")


def _build_libt2r(build: Build) -> None:
    place = build.tools.build
    configure = ("cmake", "-S", ROOT / "runtimes" / "cpp", "-B", place, "-DCMAKE_INSTALL_LIBDIR=lib")
    new = () if (place / "CMakeCache.txt").exists() else ("-DT2R_TESTS=OFF",)  # no package contains the tests
    build.run(*configure, *new, *build.tools.cmake)
    build.run("cmake", "--build", place, "--parallel", "2", "--target", "t2r", "t2r_static")


def linked(folder: Path) -> Path | None:
    """The library of ONNX Runtime that libt2r was linked with in a build folder; None if the folder has none."""
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.search(r"T2R_ONNXRUNTIME_(?:FOUND_)?LIBRARY:\w+=(.+)", cache)
    return Path(found[1]).resolve() if found else None


CROSS = ("provider", "c")  # packages with files for other platforms
PACKAGES: Mapping[str, Package] = {
    "t2r-export": Package(".", "pypi", python, ("t2r_export", "README.md", "pyproject.toml", *LEGAL), "t2r-export"),
    "t2r-runtime": Package("runtimes/python", "pypi", python, name="t2r-runtime"),
    "provider": Package("runtimes/provider", "pypi", provider, name="onnxruntime-ep-t2r"),
    "c": Package("runtimes/cpp", "generic", c, contains=("unicode", "onnxruntime")),
    "rust": Package("runtimes/rust", "cargo", cargo),
    "go": Package("runtimes/go", "golang", go, name="t2r.internal/t2r"),
    "java": Package("runtimes/java", "generic", java, contains=("unicode", "onnxruntime")),
    "js": Package(
        "runtimes/js", "npm", npm, ("src", "package.json", "tsconfig.json", "README.md", *LEGAL), "t2r-runtime"
    ),
}


def build(name: str, out: Path, work: Path, version: str, tools: Tools) -> list[Path]:
    """Build one package into `out`; returns its artifacts."""
    before = set(out.rglob("*"))
    package = PACKAGES[name]
    place = work / name / "stage"
    package.build(Build(stage(package.folder, place, package.files), out, version, tools))
    return sorted(path for path in set(out.rglob("*")) - before if path.is_file())

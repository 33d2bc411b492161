"""Builds what is above libt2r. `make test-bindings`, or, with ONNX Runtime's headers in a folder of yours:

T2R_ONNXRUNTIME_ROOT=FOLDER pytest runtimes/bindings/tests

A toolchain is searched on the PATH, then in the folder that $T2R_RUST, $T2R_GO or $T2R_JAVA names: packages of
Debian, unpacked by .ci/debian.py. A language without one is skipped, which T2R_STRICT=1 makes a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cpp_build import BUILDS, ROOT, STRICT

Command = list[str | Path]
Programs = Mapping[str, Command]  # what to run for "conformance", "misuse", "story"


def refuse(reason: str) -> None:
    """Skip the language, visibly; fail where nothing may be skipped."""
    (pytest.fail if STRICT else pytest.skip)(reason)


class Place:
    """Where libt2r is installed, where a language's build goes, and the environment of both."""

    def __init__(self, prefix: Path, language: str) -> None:
        self.source = ROOT / "runtimes" / language
        self.build = BUILDS / language
        self.build.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "T2R_DIR": f"{prefix}",
            "CPATH": f"{prefix / 'include'}",
            "LIBRARY_PATH": f"{prefix / 'lib'}",
            "LD_LIBRARY_PATH": f"{prefix / 'lib'}",
        }

    def find(self, program: str, variable: str, folder: str, *libraries: str) -> None:
        """Put the toolchain with this program on the path; skip where there is none."""
        if shutil.which(program):
            return
        root = Path(os.environ.get(variable, "/nowhere"))
        if not (root / folder / program).exists():
            refuse(f"no {program} on the PATH, nor unpacked where ${variable} says")
        self.environment["PATH"] += f":{root / folder}"
        self.environment["LD_LIBRARY_PATH"] += "".join(f":{root / library}" for library in libraries)

    def run(self, *command: object, folder: Path | None = None) -> None:
        """Run a command of a toolchain, which must succeed."""
        words = [str(part) for part in command]
        found = shutil.which(words[0], path=self.environment["PATH"]) or words[0]
        done = subprocess.run(
            [found, *words[1:]],
            env=self.environment,
            cwd=folder or self.source,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def rust(place: Place) -> Programs:
    """The examples, and the programs in the documentation, of which some must not compile."""
    place.find("cargo", "T2R_RUST", "usr/bin", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    place.environment |= {"CARGO_TARGET_DIR": str(place.build), "RUSTFLAGS": "-D warnings", "CARGO_NET_OFFLINE": "true"}
    place.run("cargo", "build", "--jobs", 2, "--locked", "--release", "--examples")
    place.environment["RUSTC_BOOTSTRAP"] = "1"  # a released compiler does not compare the errors' codes otherwise
    place.run("cargo", "test", "--jobs", 2, "--locked", "--release", "--doc")
    del place.environment["RUSTC_BOOTSTRAP"]
    return {name: [place.build / "release" / "examples" / name] for name in ("conformance", "misuse", "story")}


def go(place: Place) -> Programs:
    """The commands, after what go vet says of them."""
    place.find("go", "T2R_GO", "usr/lib/go-1.24/bin")
    place.environment |= {"GOCACHE": str(place.build / "cache"), "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    place.run("go", "vet", "-p", 2, "./...")
    place.run("go", "build", "-p", 2, "-o", place.build, "./...")
    return {name: [place.build / name] for name in ("conformance", "misuse", "story")}


def jdk() -> Command:
    """What stands before javac and java: nothing where those of this machine have java.lang.foreign."""
    if shutil.which("javac"):
        version = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True, timeout=60).stdout
        if int(version.split()[1].split(".")[0]) >= 22:
            return []
    folder = Path(os.environ.get("T2R_JAVA", "/nowhere"))
    if not folder.is_dir():
        refuse("no javac of 22 or later on the PATH, nor unpacked where $T2R_JAVA says")
    return [ROOT / ".ci" / "debian_java", folder]


def java_tools() -> list[str]:
    """Variables of the Makefile."""
    return [f"{name.upper()}={' '.join(map(str, [*jdk(), name]))}" for name in ("javac", "jar")]


def java(place: Place) -> Programs:
    """The jar, and the programs on the class path."""
    place.environment["LC_ALL"] = "C.UTF-8"  # what Java writes its output in
    place.run("make", f"OUT={place.build}", *java_tools())
    run: Command = [*jdk(), "java", "--enable-native-access=ALL-UNNAMED", "-cp"]
    run.append(f"{place.build / 't2r.jar'}:{place.build / 'programs'}")
    programs = {"conformance": "conformance.Conformance", "layouts": "Layouts", "misuse": "Misuse", "story": "Story"}
    return {name: [*run, main] for name, main in programs.items()}


LANGUAGES: Mapping[str, Callable[[Place], Programs]] = {"rust": rust, "go": go, "java": java}

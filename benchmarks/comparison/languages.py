"""Build the timing programs of the languages that use libt2r, if their toolchains are available."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from t2r_runtime.errors import UserError

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "benchmarks" / "embedding"
PATIENCE = 900  # timeout of a build in seconds
Program = Sequence[str] | UserError  # command, or reason for its absence
Builder = Callable[[Path, Path], Sequence[str | Path]]  # prefix of libt2r, build folder → command


def run(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run a build tool.

    Raises:
        UserError: a missing or failed tool; quotes its last line.
    """
    words = [str(part) for part in command]
    variables = {**os.environ, **(environment or {})}
    program = shutil.which(words[0], path=variables["PATH"])
    if program is None:
        raise UserError(f"{words[0]}, which the programs are built with", "none", "install it")
    done = subprocess.run(
        [program, *words[1:]], env=variables, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        raise UserError(f"{words[0]} to succeed", output[-1][:300], "run it by hand: " + " ".join(words))


def rust(prefix: Path, work: Path) -> Sequence[str | Path]:
    flags = {
        "CARGO_TARGET_DIR": str(work),
        "T2R_DIR": str(prefix),
        "RUSTFLAGS": _linked(prefix, "-Clink-arg="),
    }
    manifest = SOURCES / "rust" / "Cargo.toml"
    run(
        ["cargo", "build", "--jobs", "2", "--release", "--offline", "--manifest-path", manifest],
        _debian("RUST") | flags,
    )
    return [work / "release" / "greedy"]


def go(prefix: Path, work: Path) -> Sequence[str | Path]:
    flags = {
        "GOCACHE": str(work / "cache"),
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "CPATH": str(prefix / "include"),
        "LIBRARY_PATH": str(prefix / "lib"),
        "CGO_LDFLAGS": _linked(prefix),
    }
    run(["go", "build", "-p", "2", "-o", work / "greedy", "."], _debian("GO") | flags, SOURCES / "go")
    return [work / "greedy"]


def java(prefix: Path, work: Path) -> Sequence[str | Path]:
    folder = os.environ.get("T2R_JAVA")  # unpacked Debian packages; default: the system's Java, 22 or later
    tools = [] if folder is None else [str(ROOT / ".ci" / "debian_java"), folder]
    made = [f"{name.upper()}={shlex.join([*tools, name])}" for name in ("javac", "jar")]
    run(["make", "-C", ROOT / "runtimes" / "java", f"OUT={work}", work / "t2r.jar", *made])
    jar = work / "t2r.jar"
    run([*tools, "javac", "-encoding", "UTF-8", "-cp", jar, "-d", work, SOURCES / "java" / "Greedy.java"])
    library = f"-Dt2r.library={prefix / 'lib' / 'libt2r.so'}"
    return [*tools, "java", "--enable-native-access=ALL-UNNAMED", library, "-cp", f"{jar}:{work}", "Greedy"]


def _linked(prefix: Path, option: str = "") -> str:
    return f"{option}-Wl,-rpath,{prefix / 'lib'}"


FOLDERS = {"RUST": "usr/bin", "GO": "usr/lib/go-1.24/bin"}  # in unpacked Debian packages


def _debian(language: str) -> dict[str, str]:
    """Environment variables that add a toolchain unpacked by .ci/debian.py."""
    root = os.environ.get(f"T2R_{language}")
    if root is None:
        return {}
    libraries = [f"{root}/usr/lib/x86_64-linux-gnu", f"{root}/lib/x86_64-linux-gnu"]
    return {
        "PATH": f"{os.environ['PATH']}:{root}/{FOLDERS[language]}",
        "LD_LIBRARY_PATH": ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), *libraries])),
    }


LANGUAGES: Mapping[str, Builder] = {"Java": java, "Go": go, "Rust": rust}


def build_languages(prefix: Path, work: Path) -> dict[str, Program]:
    """Build the program of each language; a UserError is the reason for its absence."""
    found: dict[str, Program] = {}
    for name, builder in LANGUAGES.items():
        place = work / name.lower()
        place.mkdir(parents=True, exist_ok=True)
        try:
            found[name] = [str(part) for part in builder(prefix, place)]
        except UserError as error:
            found[name] = error
    return found

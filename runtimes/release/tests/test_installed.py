"""Every package, installed into a clean environment, runs the program of its README."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from email import message_from_string
from pathlib import Path

import pytest
from bindings_build import Place, jdk, refuse
from cpp_build import BUILDS, ROOT, onnxruntime_options
from installs import Released, environment, fenced, output, pip, unpacked


def python_program(folder: Path, *wheels: Path) -> str:
    """Run the program of the last wheel's README in an environment with all wheels and their dependencies."""
    python = environment(folder / "environment")
    pip(python, "-c", ROOT / "constraints.txt", *wheels)
    with zipfile.ZipFile(wheels[-1]) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        readme = str(message_from_string(archive.read(name).decode()).get_payload())
    return output(folder, python, "-c", fenced(readme, "python"))


def test_python(released: Released, folder: Path, story: str) -> None:
    assert python_program(folder, released.file("t2r-runtime", "t2r_runtime-*.whl")) == f"{story}\n"


def test_provider(released: Released, folder: Path, story: str) -> None:
    """The execution provider t2r generates the same text."""
    wheels = released.file("t2r-runtime", "t2r_runtime-*.whl"), released.file("provider", "onnxruntime_ep_t2r-*.whl")
    assert python_program(folder, *wheels) == f"{story}\n"


def c_program(prefix: Path, folder: Path, readme: str) -> str:
    """Build the program of the C library's README with its CMakeLists.txt, and run it."""
    for name, language in (("story.cpp", "cpp"), ("CMakeLists.txt", "cmake")):
        (folder / name).write_text(fenced(readme, language), "utf-8")
    output(folder, "cmake", "-S", ".", "-B", "built", f"-DCMAKE_PREFIX_PATH={prefix}")
    output(folder, "cmake", "--build", "built")
    return output(folder, folder / "built" / "story")


def test_c_archive(prefix: Path, folder: Path, story: str) -> None:
    readme = (prefix / "share/doc/t2r/README.md").read_text("utf-8")
    assert c_program(prefix, folder, readme) == f"{story}\n"


def test_c_debian_package(released: Released, folder: Path, story: str) -> None:
    """Installed below a new root, without its dependencies."""
    if shutil.which("dpkg-shlibdeps") is None:
        refuse("no dpkg-shlibdeps on the PATH: the package dpkg-dev")
    root = folder / "root"
    for name in ("updates", "info", "triggers"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    for name in ("status", "available"):
        (root / "var/lib/dpkg" / name).touch()
    package = released.file("c", "t2r_*_*.deb")
    depends = output(folder, "dpkg-deb", "--field", package, "Depends")
    assert "libstdc++6" in depends and "onnxruntime" not in depends
    options = (f"--root={root}", "--force-depends", "--force-not-root", f"--log={folder / 'log'}")
    output(folder, "dpkg", *options, "--install", package)
    prefix = root / "opt/t2r"
    readme = (prefix / "share/doc/t2r/README.md").read_text("utf-8")
    assert c_program(prefix, folder, readme) == f"{story}\n"


def test_c_sources(released: Released, folder: Path, story: str) -> None:
    """Configured as in the README, but without optimization, which takes half of the time."""
    source = unpacked(released.file("c", "t2r-*-source.tar.gz"), folder / "source")
    quick = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0", "-DCMAKE_INSTALL_LIBDIR=lib")
    output(source, "cmake", "-S", ".", "-B", "build", "-DT2R_TESTS=OFF", *quick, *onnxruntime_options())
    output(source, "cmake", "--build", "build", "--parallel", 2)
    output(source, "cmake", "--install", "build", "--prefix", folder / "prefix")
    assert c_program(folder / "prefix", folder, (source / "README.md").read_text("utf-8")) == f"{story}\n"


def rust(released: Released, place: Place, folder: Path) -> str:
    place.find("cargo", "T2R_RUST", "usr/bin", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    crate = unpacked(released.file("rust", "*.crate"), folder / "crate")
    place.environment |= {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_NET_OFFLINE": "true"}
    place.run("cargo", "init", "--quiet", "--vcs", "none", "--name", "story", folder / "story")
    (folder / "story/src/main.rs").write_text(fenced((crate / "README.md").read_text("utf-8"), "rust"), "utf-8")
    place.run("cargo", "add", "--quiet", "--path", crate, folder=folder / "story")
    place.run("cargo", "build", "--jobs", 2, folder=folder / "story")
    return output(folder, folder / "target/debug/story", **place.environment)


def go(released: Released, place: Place, folder: Path) -> str:
    place.find("go", "T2R_GO", "usr/lib/go-1.24/bin")
    module = released.file("go", "go/t2r.internal/t2r/@v/*.zip")
    proxy = {
        "GOPROXY": (released.out / "go").as_uri(),
        "GONOSUMDB": "t2r.internal",
        "GOMODCACHE": str(folder / "modules"),
    }
    place.environment |= {
        **proxy,
        "GOFLAGS": "-modcacherw",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(BUILDS / "go/cache"),
    }
    with zipfile.ZipFile(module) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/README.md")]
        (folder / "main.go").write_text(fenced(archive.read(name).decode(), "go"), "utf-8")
    place.run("go", "mod", "init", "story", folder=folder)
    place.run("go", "get", "t2r.internal/t2r", folder=folder)
    place.run("go", "build", "-p", 2, folder=folder)
    return output(folder, folder / "story", **place.environment)


def java(released: Released, place: Place, folder: Path) -> str:
    jar = released.file("java", "*.jar")
    with zipfile.ZipFile(jar) as archive:
        (folder / "Story.java").write_text(fenced(archive.read("META-INF/README.md").decode(), "java"), "utf-8")
        assert int.from_bytes(archive.read("t2r/Decoder.class")[6:8], "big") == 66, "classes of JDK 22, the oldest"
    environment = {"LC_ALL": "C.UTF-8", "PATH": place.environment["PATH"]}  # libt2r is in the jar
    return output(folder, *jdk(), "java", "--enable-native-access=ALL-UNNAMED", "-cp", jar, "Story.java", **environment)


LANGUAGES: Mapping[str, Callable[[Released, Place, Path], str]] = {"rust": rust, "go": go, "java": java}


@pytest.mark.parametrize("language", LANGUAGES)
def test_over_the_archive_of_c(language: str, released: Released, prefix: Path, folder: Path, story: str) -> None:
    assert LANGUAGES[language](released, Place(prefix, language), folder) == f"{story}\n"


def test_javascript(released: Released, folder: Path, story: str) -> None:
    package = released.file("js", "*.tgz")
    known = {name: value for name, value in os.environ.items() if name.lower().startswith(("npm_config", "home"))}
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline", "--loglevel", "error")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    output(folder, "npm", "install", *quiet, package, "onnxruntime-node", ONNXRUNTIME_NODE_INSTALL="skip", **known)
    readme = (folder / "node_modules/t2r-runtime/README.md").read_text("utf-8")
    (folder / "story.js").write_text(fenced(readme, "js"), "utf-8")
    assert output(folder, "node", "story.js") == f"{story}\n"

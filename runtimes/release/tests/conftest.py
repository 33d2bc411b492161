"""Fixtures: a release that is built once, the same tree in another folder, and a graph exported by the wheel."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bindings_build import Place, jdk
from cpp_build import ROOT, build, onnxruntime_options
from documented import documented, reason
from installs import Released, environment, output, pip, program
from release import packages, rebuild
from release.assemble import release

from t2r_runtime import Decoder, Sampling, Tokenizer

SKIPPED = (pytest.skip.Exception, pytest.fail.Exception)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    folder = build("release", "-DCMAKE_INSTALL_LIBDIR=lib")  # shared with the tests of C++
    missing, prefix, place = {}, [], Place(folder, "rust")
    if shutil.which("npm") is None:
        missing["js"] = "no npm on the PATH"
    if not Path(os.environ.get("T2R_ONNXRUNTIME_INCLUDE", "/nowhere"), "onnxruntime_ep_c_api.h").is_file():
        missing["provider"] = "no headers of ONNX Runtime 1.23 or later in $T2R_ONNXRUNTIME_INCLUDE"
    try:
        place.find("cargo", "T2R_RUST", "usr/bin", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    except SKIPPED as error:
        missing["rust"] = str(error)
    try:
        prefix = jdk()
    except SKIPPED as error:
        missing["java"] = str(error)
    out = tmp_path_factory.mktemp("release")
    environment = {name: place.environment[name] for name in ("PATH", "LD_LIBRARY_PATH")}
    tools = packages.Tools(jdk=prefix, cmake=onnxruntime_options(), build=folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        release(out, [name for name in packages.PACKAGES if name not in missing], tools)
    return Released(out, missing, tools, environment)


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree in another folder, where what is not committed is."""
    place = rebuild.clone(ROOT, tmp_path_factory.mktemp("elsewhere") / "with-a-longer-name" / "tree")
    for name in filter(None, output(ROOT, "git", "ls-files", "-zmo", "--exclude-standard").split("\0")):
        (place / name).unlink(missing_ok=True)
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    if output(place, "git", "status", "--porcelain"):
        output(place, "git", "add", "--all")
        output(place, "git", "-c", "user.name=t2r", "-c", "user.email=t2r", "commit", "--quiet", "-m", "changes")
    return place


@pytest.fixture(scope="session")
def small(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of two packages that are built without other programs, from that commit."""
    out = tmp_path_factory.mktemp("small") / "release"
    program(copied, "build", out, "--only", "t2r-runtime", "go")
    return out


@pytest.fixture(scope="session")
def prefix(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libt2r, unpacked from its archive."""
    place = tmp_path_factory.mktemp("libt2r")
    shutil.unpack_archive(released.file("c", "t2r-*-linux-*.tar.gz"), place, filter="data")
    [folder] = place.iterdir()
    return folder


@pytest.fixture(scope="session")
def exported(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with story.onnx, exported by the README's commands in a new environment with both wheels.

    Dependencies come from the environment that runs the tests, since torch is large.
    """
    folder = tmp_path_factory.mktemp("exported")
    python = environment(folder / "environment")
    pip(python, "--no-index", "--no-deps", *released.out.glob("t2r_*.whl"))
    [site] = folder.glob("environment/lib/python*/site-packages")
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
    (folder / "models").symlink_to(ROOT / "models")
    for line in (line for page, line in documented() if page == "README.md" and reason((page, line)) is None):
        program, *words = shlex.split(line)
        done = subprocess.run(
            [python.with_name(program), *words], capture_output=True, text=True, timeout=300, env={}, cwd=folder
        )
        assert done.returncode == 0, (line, done.stderr)
    assert done.stderr.startswith("Once upon a time") and len(done.stdout) > 200
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A new folder that contains story.onnx."""
    (tmp_path / "story.onnx").symlink_to(exported / "story.onnx")
    return tmp_path


@pytest.fixture(scope="session")
def story(exported: Path) -> str:
    """The text that the program of every README prints: 200 tokens by the Python runtime."""
    decoder = Decoder(exported / "story.onnx")
    tokenizer = Tokenizer.of(decoder.signature)
    ids = tokenizer.encode("Once upon a time")
    return tokenizer.decode(decoder.generate(ids, 200, Sampling(temperature=0)))

"""Fixtures: a release that is built once, and a graph exported by its wheel."""

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
from installs import Released, environment, pip
from release import packages
from release.__main__ import release

from t2r_runtime import Decoder, Sampling, Tokenizer

SKIPPED = (pytest.skip.Exception, pytest.fail.Exception)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    folder = build("release", "-DCMAKE_INSTALL_LIBDIR=lib")  # shared with the tests of C++
    missing, prefix, tools = {}, [], Place(folder, "rust")
    if shutil.which("npm") is None:
        missing["js"] = "no npm on the PATH"
    if not Path(os.environ.get("T2R_ONNXRUNTIME_INCLUDE", "/nowhere"), "onnxruntime_ep_c_api.h").is_file():
        missing["provider"] = "no headers of ONNX Runtime 1.23 or later in $T2R_ONNXRUNTIME_INCLUDE"
    try:
        tools.find("cargo", "T2R_RUST", "usr/bin", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    except SKIPPED as error:
        missing["rust"] = str(error)
    try:
        prefix = jdk()
    except SKIPPED as error:
        missing["java"] = str(error)
    out = tmp_path_factory.mktemp("release")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "LD_LIBRARY_PATH"):
            patch.setenv(name, tools.environment[name])
        names = [name for name in packages.PACKAGES if name not in missing]
        release(out, names, packages.Tools(jdk=prefix, cmake=onnxruntime_options(), build=folder))
    return Released(out, missing)


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

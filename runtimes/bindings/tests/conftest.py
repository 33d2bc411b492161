"""libt2r, as a user installs it, and each language's programs over it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bindings_build import LANGUAGES, Place, Programs
from cpp_build import BUILDS, Run, build


@pytest.fixture(scope="session")
def release() -> Path:
    """The build that the tests of runtimes/cpp have, too."""
    return build("release", "-DCMAKE_INSTALL_LIBDIR=lib")


@pytest.fixture(scope="session")
def prefix(release: Path) -> Path:
    folder = BUILDS / "installed"
    command = ["cmake", "--install", str(release), "--prefix", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return folder


@pytest.fixture(scope="session", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def place(prefix: Path, language: str) -> Place:
    return Place(prefix, language)


@pytest.fixture(scope="session")
def programs(place: Place, language: str) -> Programs:
    return LANGUAGES[language](place)


@pytest.fixture(scope="session")
def run(place: Place, programs: Programs) -> Run:
    """Run a program of a language: what it returned and wrote. `library`: a folder with another libt2r."""

    def runs(
        name: str, *arguments: object, status: int = 0, library: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        words = [*map(str, programs[name]), *(a if isinstance(a, bytes) else str(a) for a in arguments)]
        found = place.environment["LD_LIBRARY_PATH"]
        environment = {**place.environment, "LD_LIBRARY_PATH": f"{library}:{found}" if library else found}
        done = subprocess.run(words, capture_output=True, timeout=100, env=environment)
        assert done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    return runs

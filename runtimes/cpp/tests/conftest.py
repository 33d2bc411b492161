"""Builds that the tests share, and a fixture that runs their programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cpp_build import CHECKED, SANITIZERS, Run, build
from t2r_library import Library

from selection import data, pytest_collection_modifyitems

__all__ = ["data", "pytest_collection_modifyitems"]  # a fixture and a hook of selection


# a finished build that counts lines and branches, in place of the following two: .ci/covered.py
COUNTED = os.environ.get("T2R_COUNTED")


@pytest.fixture(scope="session")
def release() -> Path:
    return Path(COUNTED) if COUNTED else build("release", "-DCMAKE_INSTALL_LIBDIR=lib")


@pytest.fixture(scope="session")
def checked() -> Path:
    """A build with AddressSanitizer and UndefinedBehaviorSanitizer."""
    targets = ["t2r", "t2r_conformance", "api_calls", "misuse_c", "misuse_cpp", "header", "torture"]
    return Path(COUNTED) if COUNTED else build("address", "-DT2R_SANITIZE=address", *CHECKED, targets=targets)


@pytest.fixture(scope="session")
def raced() -> Path:
    """A build with ThreadSanitizer."""
    return build("thread", "-DT2R_SANITIZE=thread", *CHECKED, targets=["threads", "cancels", "handles"])


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a program and return its exit code and output."""

    def runs(
        *command: object, status: int | None = 0, text: str | None = None, timeout: int = 300
    ) -> subprocess.CompletedProcess[str]:
        environment, words = {**os.environ, **SANITIZERS}, [str(part) for part in command]
        done = subprocess.run(words, capture_output=True, text=True, input=text, timeout=timeout, env=environment)
        assert status is None or done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    return runs


@pytest.fixture(scope="session")
def library(release: Path) -> Library:
    """libt2r, or the sanitized one that the environment names."""
    return Library(Path(os.environ.get("T2R_LIBRARY") or release / "libt2r.so"))

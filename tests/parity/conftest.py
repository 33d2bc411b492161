"""The provider that this suite runs on: $T2R_PROVIDER, which tox's parity environments set."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def provider() -> str:
    return os.environ.get("T2R_PROVIDER", "cpu")

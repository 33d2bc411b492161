"""A run of three stages, its output, and the state of its stopped copy."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from t2r_export.config.finetune import FinetuneConfig


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    return runs.usual(tmp_path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Output of an uninterrupted run of `config`."""
    return runs.ended(runs.usual(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The state of a run of `config`, stopped in its second stage."""
    config = runs.usual(tmp_path_factory.mktemp("stopped"))
    runs.stop_at(config, 8)
    return config.state_path.read_bytes()

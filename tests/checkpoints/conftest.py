"""A checkpoint in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint_files import PROVENANCE, random_model
from t2r_export.checkpoints import checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    checkpoint.save(path, random_model(), '{"t": "ö"}', PROVENANCE)
    return path

"""Tokens for calibration and for measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantized import write_tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path)

"""The folder of public checkpoints, texts and pairs that benchmarks read by default."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """$T2R_DATA, or the current folder."""
    return Path(os.environ.get("T2R_DATA", "."))

"""Time whole processes; describe the machine and package versions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2r_export.errors import CheckFailed
from t2r_export.providers import bench

PEER_PACKAGES = ("onnxruntime-genai", "llama-cpp-python", "gguf", "transformers", "ctranslate2")


def machine() -> dict[str, Any]:
    """Machine and package versions."""
    return bench.machine((*bench.PACKAGES, *PEER_PACKAGES))


def run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process; its output is discarded.

    Raises:
        CheckFailed: the process failed; quotes its status.
    """
    watcher = [sys.executable, "-I", str(Path(__file__).with_name("watch.py")), *command]
    answer = subprocess.run(watcher, stdout=subprocess.PIPE, check=True).stdout
    seconds, peak, status = answer.split()
    if int(status) != 0:
        raise CheckFailed(f"{' '.join(command)} ended with status {int(status)}")
    return float(seconds), int(peak)

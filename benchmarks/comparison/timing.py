"""Processes timed whole, and the machine with the versions of all that is compared on it."""

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
    """What a figure needs beside it to mean something."""
    return bench.machine((*bench.PACKAGES, *PEER_PACKAGES))


def run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process that must succeed; what it prints is thrown away.

    Raises:
        CheckFailed: it did not; quotes its status.
    """
    watcher = [sys.executable, "-I", str(Path(__file__).with_name("watch.py")), *command]
    answer = subprocess.run(watcher, stdout=subprocess.PIPE, check=True).stdout
    seconds, peak, status = answer.split()
    if int(status) != 0:
        raise CheckFailed(f"{' '.join(command)} ended with status {int(status)}")
    return float(seconds), int(peak)

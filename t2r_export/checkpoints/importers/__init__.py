"""Checkpoints that others made: one family per file, named in one table by config.json's `model_type`."""

from __future__ import annotations

from pathlib import Path

from t2r_export.checkpoints.importers.bart import BART
from t2r_export.checkpoints.importers.base import Importer
from t2r_export.checkpoints.importers.falcon_h1 import FALCON_H1
from t2r_export.checkpoints.importers.folder import Imported, read
from t2r_export.checkpoints.importers.gpt2 import GPT2
from t2r_export.checkpoints.importers.granite import GRANITE
from t2r_export.checkpoints.importers.lfm2 import LFM2
from t2r_export.checkpoints.importers.llama import LLAMA
from t2r_export.checkpoints.importers.mamba2 import MAMBA2
from t2r_export.checkpoints.importers.marian import MARIAN
from t2r_export.checkpoints.importers.mistral import MISTRAL
from t2r_export.checkpoints.importers.nemotron_h import NEMOTRON_H
from t2r_export.checkpoints.importers.pegasus import PEGASUS
from t2r_export.checkpoints.importers.qwen2 import QWEN2
from t2r_export.checkpoints.importers.qwen3 import QWEN3
from t2r_export.checkpoints.importers.qwen3_5 import QWEN3_5, QWEN3_5_TEXT

IMPORTERS: dict[str, Importer] = {
    "bart": BART,
    "falcon_h1": FALCON_H1,
    "gpt2": GPT2,
    "granitemoehybrid": GRANITE,
    "lfm2": LFM2,
    "llama": LLAMA,
    "mamba2": MAMBA2,
    "marian": MARIAN,
    "mistral": MISTRAL,
    "nemotron_h": NEMOTRON_H,
    "pegasus": PEGASUS,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_5": QWEN3_5,
    "qwen3_5_text": QWEN3_5_TEXT,
}


def read_folder(path: str | Path) -> Imported:
    """Read a Hugging Face folder of any family in `IMPORTERS`. Raises UserError, see `importers.folder.read`."""
    return read(Path(path), IMPORTERS)


__all__ = ["IMPORTERS", "Imported", "Importer", "read_folder"]

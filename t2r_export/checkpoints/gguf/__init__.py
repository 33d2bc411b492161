"""GGUF files, as the importers of Hugging Face folders read them."""

from __future__ import annotations

from pathlib import Path

from t2r_export.checkpoints.gguf.file import GgufFile
from t2r_export.checkpoints.importers import IMPORTERS, Imported
from t2r_export.checkpoints.importers.folder import read


def read_gguf(path: Path) -> Imported:
    """Read a model from a .gguf, or from the first of its parts.

    Raises:
        UserError: as `importers.folder.read`; a damaged file; an architecture, tokenizer or type of tensors that is not
            read; or no package gguf.
    """
    file = GgufFile(path)
    return read(file, IMPORTERS, file.tensors.stored)

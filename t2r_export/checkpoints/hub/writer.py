"""The only writer of Hugging Face folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.importers import Importer
from t2r_export.checkpoints.importers.files import CONFIG, LIMITS, WEIGHTS
from t2r_export.checkpoints.weights import as_float32, weight_shapes
from t2r_export.paths import new_folder
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_file import Library


def write_folder(
    folder: Path, texts: Mapping[str, str], loaded: Checkpoint, importer: Importer, dtype: torch.dtype = torch.float32
) -> list[Path]:
    """Write the files of a folder, and the model's weights as model.safetensors.

    Args:
        folder: must not exist, or be empty; it appears when all files are written.
        texts: contents by file name, config.json among them.
        importer: the family whose names and layouts the tensors get.

    Returns:
        Paths of the files.

    Raises:
        UserError: a config.json that is too large to be read again, a weight that is not finite in `dtype`, or a folder
            that cannot be written. Nothing is left behind.
    """
    if len(texts[CONFIG].encode()) > LIMITS[CONFIG]:
        do = "save a model.pt with --as t2r"
        raise UserError(f"a {CONFIG} of at most {LIMITS[CONFIG]} bytes", f"{len(texts[CONFIG].encode())}", do)
    sources = importer.sources(loaded.config, weight_shapes(loaded.config))
    state = {name: tensor.detach().cpu() for name, tensor in loaded.model.state_dict().items()}
    held = {name: source for name, source in sources.items() if source.constant is None}
    tensors = {name: source.stored(state).to(dtype).contiguous() for name, source in held.items()}
    for name, tensor in tensors.items():
        as_float32(name, tensor)  # raises for overflow
    with new_folder(folder) as part:
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
        try:
            save_file(tensors, part / WEIGHTS, {"format": "pt"})
        except SafetensorError as error:  # whatever the system says: a full disk
            raise OSError(str(error)) from error
        shutil.copymode(part / CONFIG, part / WEIGHTS)  # safetensors makes files that only their owner can read
    return [folder / name for name in (*texts, WEIGHTS)]


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def token_texts(tokenizer: str, numbers: Mapping[str, int | None]) -> dict[str, str]:
    """The texts of tokens by their names in tokenizer_config.json; tokens that the tokenizer lacks are left out."""
    library = Library(tokenizer).tokenizer
    texts = {name: None if token is None else library.id_to_token(token) for name, token in numbers.items()}
    return {name: text for name, text in texts.items() if text is not None}

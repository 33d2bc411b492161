"""A character-level model, its conversion and its graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cli_models import CONFIG, letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.untrained import marked
from t2r_export.cli import export_main, main
from t2r_export.model.transformer import Transformer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random softmax model, its conversion without the mark of untrained parts, and the graph of that."""
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(1)
    checkpoint.save(folder / "model.pt", Transformer(CONFIG.build()), letter_tokenizer(), {"origin": "random weights"})
    assert main(["convert", str(folder / "model.pt"), str(folder / "t2r.pt"), "--mixer", "linear:feature_size=5"]) == 0
    made = checkpoint.load(folder / "t2r.pt")
    checkpoint.save(folder / "t2r.pt", made.model, made.tokenizer, marked(made.provenance, []))
    assert export_main([str(folder / "t2r.pt"), str(folder / "t2r.onnx")]) == 0
    return folder

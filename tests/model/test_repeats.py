"""Layers shared over depth: Dehghani et al. 2018 (arXiv 1807.03819), with a fixed number of steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
from small import GPT2, LINEAR, LLAMA, SOFTMAX, WIDTH
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert
from t2r_export.describe import describe
from t2r_export.export import build
from t2r_export.fold import fold
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized
from t2r_export.training.layerwise import Transfer
from t2r_export.training.stages import Distill
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

SINUSOIDS: dict[str, Any] = {"position": "sinusoidal", "max_positions": None}
MODELS: dict[str, UniformConfig] = {
    "one": small.with_layers(GPT2, LINEAR, repeats=3),
    "two": small.with_layers(LLAMA, LINEAR, SOFTMAX, repeats=2),
    "coordinates": small.with_layers(GPT2, LINEAR, LINEAR, repeats=3, depth_positions=True, **SINUSOIDS),
}
models = pytest.mark.parametrize("name", MODELS)


def unrolled(made: Transformer) -> Transformer:
    """A model with one layer per run of a layer, each with a copy of its weights."""
    config, count = made.config, len(made.blocks)
    whole = Transformer(dataclasses.replace(config, layers=config.layers * config.repeats, repeats=1)).eval()
    weights = dict(made.state_dict())
    for name in list(weights):
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            tensor = weights.pop(name)
            weights |= {f"blocks.{int(number) + r * count}.{rest}": tensor.clone() for r in range(config.repeats)}
    whole.load_state_dict(weights)
    return whole


@torch.no_grad()
@pytest.mark.parametrize("name", ["one", "two"])
def test_the_model_of_copied_layers(name: str) -> None:
    made, ids = small.model(MODELS[name]).double(), small.ids()
    whole = unrolled(made).double()
    start = small.states(made)
    assert whole.state_spec() == made.state_spec()
    expected, after = whole.prefill(ids, start)
    logits, states = made.prefill(ids, start)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    small.assert_states(states, after, 1e-12)
    weights = sum(w.numel() for w in made.blocks.parameters())
    assert sum(w.numel() for w in whole.blocks.parameters()) == made.config.repeats * weights


def coordinates(t: int, length: int) -> np.ndarray:
    """P^t (length, D): sin(i / c) + sin(t / c), then the cosines, c = 10000^(2j/D) (eq. 6 and 7)."""
    rows = np.zeros((length, WIDTH))
    half = WIDTH // 2
    for i in range(length):
        for j in range(half):
            c = 10000 ** (2 * j / WIDTH)
            rows[i, j], rows[i, half + j] = np.sin(i / c) + np.sin(t / c), np.cos(i / c) + np.cos(t / c)
    return rows


@torch.no_grad()
def test_coordinates_by_definition() -> None:
    """H^t = layers(H^{t-1} + P^t), from the embeddings without positions."""
    made = small.model(MODELS["coordinates"]).double()
    ids, start = small.ids(1), made.init_state(1)
    step = made.context(start, made.ops(small.T))
    x: Tensor = made.embedding.weight[ids[0]]
    after = {}
    for t in range(1, 4):
        x = x + torch.from_numpy(coordinates(t, small.T))
        for n, block in enumerate(made.blocks):
            layer = (t - 1) * 2 + n
            x, states = block(x, made.layer_state(start, layer), step)
            after |= {f"{name}.{layer}": value for name, value in states.items()}
    logits, states = made.prefill(ids, start)
    torch.testing.assert_close(logits[0], made.logits_of(x), rtol=0, atol=1e-6)  # sinusoids are tables of float32
    small.assert_states({name: states[name] for name in after}, after, 1e-6)


@torch.no_grad()
@settings(max_examples=10)
@given(st.sampled_from(list(MODELS)), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))
def test_steps_are_the_sequence(name: str, repeats: int, batch: int, length: int) -> None:
    made = small.model(dataclasses.replace(MODELS[name], repeats=repeats)).double()
    ids, start = small.ids(batch, length), small.states(made, batch)
    expected, after = made.prefill(ids, start)
    logits, states = small.by_steps(made, ids, start)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-7)
    small.assert_states(states, after, 1e-7)


@models
def test_graph_is_the_model(name: str, tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.onnx", MODELS[name], prefill=True)
    outcome = small.proof(made, tmp_path / "g.onnx", steps=60)
    assert outcome.passed, outcome
    layers = len(made.config.layers) * made.config.repeats
    assert len(report.signature.layers) == layers
    assert {spec.name.rpartition(".")[2] for spec in report.signature.states} >= {str(n) for n in range(layers)}
    assert [one.layers for one in map(describe, [tmp_path / "g.onnx"])][0] == [dict(x) for x in report.signature.layers]


@models
def test_weights_are_exported_once(name: str) -> None:
    made = small.checkpoint(MODELS[name])
    bundle, report = build(made, ExportConfig(prefill=True))
    once, of_one = build(small.checkpoint(dataclasses.replace(MODELS[name], repeats=1)), ExportConfig(prefill=True))
    assert bundle.weights.keys() == once.weights.keys()
    assert report.parameters == of_one.parameters


def test_packed_quantized_and_folded(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", MODELS["one"], state_layout="packed", batch=3)
    outcome = small.proof(made, tmp_path / "g.onnx", steps=20)
    assert outcome.passed, outcome
    for scheme in ("w8", "int8"):
        export_quantized(made, tmp_path / "q.onnx", ExportConfig(prefill=True), QuantizeConfig(scheme=scheme))
        kept = [tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer]
        assert len(kept) == len(set(kept))
        assert np.isfinite(Decoder(tmp_path / "q.onnx").prefill([1, 2, 3])).all()
    folded, report = fold(made.model.double())
    assert folded.config.repeats == 3 and len(report) == 1
    with torch.no_grad():
        torch.testing.assert_close(folded(small.ids()), made.model(small.ids()), rtol=0, atol=1e-9)


def test_distilled_over_all_depths() -> None:
    made = small.model(MODELS["two"])
    stage = Distill(small.model(MODELS["two"], seed=1), made)
    assert stage.variance.shape == (4,)


@pytest.mark.parametrize("depth_positions", [False, True])
def test_translators(depth_positions: bool, tmp_path: Path) -> None:
    """The encoder's layers are repeated too; each repeat has separate source states."""
    base = dataclasses.replace(small.translator(base="sinusoidal"), repeats=2, depth_positions=depth_positions)
    made, report = small.graph(tmp_path / "g.onnx", base)
    assert made.config.encoder is not None and made.config.encoder.repeats == 2
    outcome = small.proof(made, tmp_path / "g.onnx", steps=20)
    assert outcome.passed, outcome
    if not depth_positions:
        whole = unrolled(made.model)
        source = small.sources()
        with torch.no_grad():
            starts = [model.start(*source) for model in (made.model, whole)]
        read = [{name: value for name, value in start.items() if name.startswith("source_")} for start in starts]
        assert len({name.rpartition(".")[2] for name in read[0]} - {"source_length"}) == len(whole.layers)
        small.assert_states(read[0], read[1], 1e-5)


def test_refused() -> None:
    with pytest.raises(UserError, match="2 layers to repeat at most 512 times"):
        small.with_layers(GPT2, LINEAR, LINEAR, repeats=513)
    with pytest.raises(UserError, match="positions that are added, for depth_positions"):
        small.with_layers(LLAMA, LINEAR, depth_positions=True)
    teacher = small.model(small.with_layers(LLAMA, SOFTMAX, repeats=2))
    with pytest.raises(
        UserError, match="layers that run once, for the transfer stage; received layers that run 2 times"
    ):
        Transfer(convert(teacher, LinearConfig(4)), teacher)

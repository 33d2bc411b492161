"""The mean attention distance of a teacher, and gates initialized from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import small
from small import LLAMA, B, G, H, T, V
from t2r_export.batches.batch import window_batch
from t2r_export.config.mixers import HybridConfig, LinearConfig, MixerConfig, WindowConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert
from t2r_export.model.mixers.gates import OPEN
from t2r_export.model.transformer import Transformer
from t2r_export.training.layerwise import Transfer

K = 6
GATED = {"update_rule": "gated", "positions": "after"}
STUDENTS = {
    "one gate": LinearConfig(K, gate="data", **GATED),
    "pairs": LinearConfig(K, gate="pair", **GATED),
    "delta": LinearConfig(K, gate="pair", **{**GATED, "update_rule": "gated_delta"}, normalizer="none"),
    "hybrid": HybridConfig(3, K, gate="pair", **GATED),
    "of a window": LinearConfig(K, update_rule="gated", gate="data"),
}
BATCH = window_batch(small.ids(length=T + 1))


def teacher(base: UniformConfig = LLAMA, mixer: MixerConfig = small.SOFTMAX) -> Transformer:
    made = small.model(small.with_layers(base, mixer, small.SOFTMAX))
    with torch.no_grad():
        for layer in (0, 1):  # makes scores differ
            for name in ("q", "k"):
                getattr(made.blocks[layer].parts[0], name).weight.mul_(3.0)
    return made


def distances(model: Transformer, layer: int, window: int) -> np.ndarray:
    """Σ_j a_ij (i - j) of a layer, averaged over the later half of the queries, (G,)."""
    states = model.init_state(B)
    trace = model.traces(BATCH.ids, states)[layer]
    heads = model.blocks[layer].parts[0].project(trace.parts[0].normed, model.context(states, model.ops(T)))
    q, k = (x.detach().double().numpy() for x in (heads.q, heads.k))
    found = np.zeros((B, H, T))
    for b, h, i in np.ndindex(B, H, T):
        seen = range(max(0, i - window + 1), i + 1)
        weights = np.exp([q[b, h, i] @ k[b, h // (H // G), j] / np.sqrt(V) for j in seen])
        found[b, h, i] = sum(a * (i - j) for a, j in zip(weights / weights.sum(), seen, strict=True))
    late: np.ndarray = found[:, :, T // 2 :].mean((0, 2)).reshape(G, -1).mean(1)
    return late


@pytest.mark.parametrize("name", STUDENTS)
def test_gates_start_at_the_distances_of_attention(name: str) -> None:
    # a window rotates by distances, after the projections that `distances` reads
    windowed = name == "of a window"
    model = teacher(small.GPT2, WindowConfig(3, sinks=0)) if windowed else teacher()
    student = convert(model, STUDENTS[name])
    Transfer(student, model).measure(BATCH)
    weights, each = student.state_dict(), 1 if STUDENTS[name].gate == "data" else K // 2
    spread = set()
    for layer, reach in ((0, 3 if windowed else T), (1, T)):
        gates = f"blocks.{layer}.parts.0.inner.gates"
        offset = weights[f"{gates}.offset"].double()
        left = np.repeat(np.exp(-1 / np.maximum(distances(model, layer, reach), 1.0)), each)
        np.testing.assert_allclose(offset[: G * each].sigmoid().numpy(), left, rtol=1e-5)
        assert offset[G * each :].tolist() == [0.0] * (G * (name == "delta"))
        assert not weights[f"{gates}.weight"].any()
        spread |= set(left.round(4).tolist())
    assert len(spread) > 2  # heads and layers differ


def test_trained_gates_stay() -> None:
    """A resumed run measures again without changing gates."""
    model = teacher()
    student = convert(model, STUDENTS["pairs"])
    stage = Transfer(student, model)
    stage.measure(BATCH)
    started = {name: weight.clone() for name, weight in student.state_dict().items()}
    stage.measure(window_batch(small.ids(length=T + 1, seed=1)))
    assert all(torch.equal(weight, started[name]) for name, weight in student.state_dict().items())
    assert (student.state_dict()["blocks.0.parts.0.inner.gates.offset"] != OPEN).any()


def test_gates_that_no_token_computes_have_no_start() -> None:
    model = teacher()
    student = convert(model, LinearConfig(K, gate="fixed", **GATED))
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    Transfer(student, model).measure(BATCH)
    assert all(torch.equal(weight, before[name]) for name, weight in student.state_dict().items())

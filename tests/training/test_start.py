"""Mixers of students that start from the attention of their teacher."""

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
from t2r_export.model.mixers.hybrid import LEAST_FAR
from t2r_export.model.transformer import Transformer
from t2r_export.training.start import start

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


def attention(model: Transformer, layer: int, window: int) -> np.ndarray:
    """Softmax attention of a layer to the last tokens, (B, H, T, T)."""
    states = model.init_state(B)
    trace = model.traces(BATCH.ids, states)[layer]
    heads = model.blocks[layer].parts[0].project(trace.parts[0].normed, model.context(states, model.ops(T)))
    q, k = (x.detach().double().numpy() for x in (heads.q, heads.k))
    scores = q @ k.repeat(H // G, 1).swapaxes(2, 3) / np.sqrt(V)
    behind = np.subtract.outer(np.arange(T), np.arange(T))
    weights = np.exp(scores) * ((behind >= 0) & (behind < window))
    found: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return found


def distances(model: Transformer, layer: int, window: int) -> np.ndarray:
    """Σ_j a_ij (i - j) of a layer, averaged over the later half of the queries, (G,)."""
    behind = np.subtract.outer(np.arange(T), np.arange(T))
    found = (attention(model, layer, window) * behind).sum(-1)
    late: np.ndarray = found[:, :, T // 2 :].mean((0, 2)).reshape(G, -1).mean(1)
    return late


def beyond(model: Transformer, layer: int, window: int, sinks: int) -> np.ndarray:
    """Attention of a layer to tokens outside a window and sinks, averaged over queries that have one, (H,)."""
    counts = np.subtract.outer(np.arange(T), np.arange(T)) >= window
    counts[:, :sinks] = False
    found: np.ndarray = (attention(model, layer, T) * counts).sum(-1)[:, :, window + sinks :].mean((0, 2))
    return found


@pytest.mark.parametrize("name", STUDENTS)
def test_gates_start_at_the_distances_of_attention(name: str) -> None:
    # a window rotates by distances, after the projections that `distances` reads
    windowed = name == "of a window"
    model = teacher(small.GPT2, WindowConfig(3, sinks=0)) if windowed else teacher()
    student = convert(model, STUDENTS[name])
    start(student, model, BATCH)
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


def test_trained_mixers_stay() -> None:
    """A later run starts from the result of an earlier one."""
    model = teacher()
    for name in ("pairs", "hybrid", "keys"):
        student = convert(model, STUDENTS.get(name, LinearConfig(K, map_init="keys")))
        start(student, model, BATCH)
        for block in student.blocks:
            block.parts[0].inner.maps.of_keys.bias.data.fill_(0.5)
        started = {name: weight.clone() for name, weight in student.state_dict().items()}
        start(student, model, window_batch(small.ids(length=T + 1, seed=1)))
        assert all(torch.equal(weight, started[name]) for name, weight in student.state_dict().items()), name
    assert (student.state_dict()["blocks.0.parts.0.inner.maps.k.weight"] != 0).any()


def test_gates_that_no_token_computes_have_no_start() -> None:
    model = teacher()
    student = convert(model, LinearConfig(K, feature_map="hedgehog", gate="fixed", **GATED))
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    start(student, model, BATCH)
    assert all(torch.equal(weight, before[name]) for name, weight in student.state_dict().items())


@pytest.mark.parametrize("config", [LinearConfig(K), LinearConfig(K, feature_map="relu2"), HybridConfig(3, K)])
@torch.no_grad()
def test_features_start_with_a_mean_square_of_one(config: MixerConfig) -> None:
    model = teacher()
    student = convert(model, config)
    start(student, model, BATCH)
    trace = model.traces(BATCH.ids, model.init_state(B))[1]
    part, step = student.blocks[1].parts[0], student.context(student.init_state(B), student.ops(T))
    heads = part.project(trace.parts[0].normed, step)
    for features in part.inner.maps.features(heads.q, heads.k, step.ops):
        np.testing.assert_allclose(features.square().mean((0, 2, 3)), np.ones(features.shape[1]), rtol=1e-4)


@pytest.mark.parametrize("sinks", [0, 1])
@pytest.mark.parametrize("merge", HybridConfig.MERGES)
@torch.no_grad()
def test_sums_start_with_the_teachers_share_beyond_the_window(merge: str, sinks: int) -> None:
    model = teacher()
    for size in (1.0, 30.0):  # of random maps
        student = convert(model, HybridConfig(3, K, merge=merge, sinks=sinks))
        for block in student.blocks:
            block.parts[0].inner.maps.of_keys.weight.mul_(size)
        start(student, model, BATCH)
        for layer, block in enumerate(student.blocks):
            states = student.init_state(B)
            step, part = student.context(states, student.ops(T)), block.parts[0]
            heads = part.project(model.traces(BATCH.ids, model.init_state(B))[layer].parts[0].normed, step)
            share = part.inner.far_share(heads, block.own(0, student.layer_state(states, layer)), step)
            found = np.maximum(beyond(model, layer, 3, sinks), LEAST_FAR)
            assert len(set(found.round(3))) > 1
            np.testing.assert_allclose(share.mean((0, 2)).expand(H), found, atol=1e-4)


def test_students_of_another_shape_stay() -> None:
    model = teacher()
    other = small.model(small.with_layers(LLAMA, small.SOFTMAX, small.SOFTMAX, small.SOFTMAX))
    student = convert(model, STUDENTS["pairs"])
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    start(student, other, BATCH)
    assert all(torch.equal(weight, before[name]) for name, weight in student.state_dict().items())

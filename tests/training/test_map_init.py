"""Feature maps initialized from a teacher's keys."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import small
from small import LLAMA, B, G, H, T
from t2r_export.batches.batch import window_batch
from t2r_export.config.mixers import HybridConfig, LinearConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Transformer
from t2r_export.training.start import start
from t2r_runtime.errors import UserError

K = 6
STUDENTS = {
    "rotated features": LinearConfig(K, update_rule="gated", gate="pair", positions="after", map_init="keys"),
    "rotated keys": LinearConfig(K, map_init="keys", query_scale=0.5),
    "squared": LinearConfig(
        K, feature_map="relu2", map_init="keys", positions="drop", update_rule="delta", normalizer="none"
    ),
    "more features than tokens": LinearConfig(2 * B * T, map_init="keys"),
}
ALIKE = ("rotated features", "squared")  # without positions, keys of equal tokens are equal
BATCH = window_batch(small.ids(length=T + 1))


def softmax(base: UniformConfig = LLAMA) -> Transformer:
    return small.model(small.with_layers(base, small.SOFTMAX, small.SOFTMAX))


def heads(student: Transformer, teacher: Transformer, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries (H, B·T, d) and keys (G, B·T, d) of a student's layer, given the teacher's hidden states."""
    trace = teacher.traces(BATCH.ids, teacher.init_state(B))[layer]
    step = student.context(student.init_state(B), student.ops(T))
    found = student.blocks[layer].parts[0].project(trace.parts[0].normed, step)
    q, k = (x.detach().double().transpose(0, 1).flatten(1, 2).numpy() for x in (found.q, found.k))
    return q * student.blocks[layer].parts[0].inner.config.query_scale, k


@torch.no_grad()
@pytest.mark.parametrize("name", STUDENTS)
def test_maps_point_at_keys(name: str) -> None:
    teacher = softmax()
    student = convert(teacher, STUDENTS[name])
    start(student, teacher, BATCH)
    for layer, block in enumerate(student.blocks):
        q, k = heads(student, teacher, layer)
        maps = block.parts[0].inner.maps
        mean, size = k.mean(1), STUDENTS[name].feature_size
        away = k - mean[:, None]
        away /= np.linalg.norm(away, axis=-1, keepdims=True)
        of_keys, of_queries = ({n: w.double().numpy() for n, w in each.named_parameters()} for each in (maps.k, maps.q))
        size_k, size_q = (np.linalg.norm(each["weight"], axis=1, keepdims=True) for each in (of_keys, of_queries))
        W, each = of_keys["weight"] / size_k, of_queries["weight"] / size_q  # features have a mean square of 1
        assert W.shape == (G, k.shape[-1], size)
        distances = np.abs(away[:, :, :, None] - W[:, None]).max(2)  # (G, tokens, K)
        assert distances.min(1).max() < 1e-5, "every feature has a key"
        assert len(set(map(tuple, distances.argmin(1)))) == G, "heads choose other tokens"
        chosen = set(distances[0].argmin(0))
        assert len(chosen) == min(size, B * T) or name in ALIKE, "every feature has another token"
        np.testing.assert_allclose(each, W.repeat(H // G, 0), atol=1e-6)
        center = of_keys["bias"] / size_k[:, 0], of_queries["bias"] / size_q[:, 0]
        np.testing.assert_allclose(center[0], -np.einsum("gd,gdk->gk", mean, W), atol=1e-5)
        np.testing.assert_allclose(center[1], -np.einsum("hd,hdk->hk", q.mean(1), each), atol=1e-5)


def test_shared_map() -> None:
    heads = dataclasses.replace(small.GPT2.attention, kv_heads=H)
    teacher = softmax(dataclasses.replace(small.GPT2, attention=heads))
    student = convert(teacher, LinearConfig(K, map_init="keys", shared_features=True))
    start(student, teacher, BATCH)
    maps = student.blocks[0].parts[0].inner.maps
    assert maps.of_queries is maps.of_keys
    assert maps.of_keys.bias.any()


def test_refused() -> None:
    with pytest.raises(UserError, match="expected map_init only with the feature map relu or relu2; received elu"):
        LinearConfig(K, feature_map="elu", map_init="keys")
    with pytest.raises(UserError, match="map_init"):
        LinearConfig(K, map_init="teacher")
    with pytest.raises(TypeError):
        HybridConfig(3, K, map_init="keys")  # type: ignore[call-arg]

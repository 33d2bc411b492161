"""Positions in scores: T5's, Shaw's, Transformer-XL's and DA-Transformer's, against their papers, in every layer that
has scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import small
from model.mixers.alone import Alone, buffers, by_steps, empty, random_mixer, text
from small import HYBRID, SHARED, SOFTMAX, WINDOW, H, V, linear
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import HybridConfig, MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.positions import PositionConfig, T5Config
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert, with_context
from t2r_export.lab.config.positions import DATransformerConfig, ShawConfig, TransformerXLConfig
from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.positions.t5 import buckets
from t2r_runtime.contract.state_spec import POSITION
from t2r_runtime.errors import UserError

BASE = dataclasses.replace(small.GPT2, position="none", max_positions=None, layers=(SOFTMAX,))
KINDS: dict[str, PositionConfig] = {
    "t5": T5Config(buckets=5, max_distance=7),
    "shaw": ShawConfig(max_distance=4),
    "transformer_xl": TransformerXLConfig(),
    "da_transformer": DATransformerConfig(),
}
kinds = pytest.mark.parametrize("kind", KINDS)
Score = Callable[[reference.Array, reference.Array, int, int], float]


def model(kind: str, *layers: MixerConfig, **attention: Any) -> UniformConfig:
    return small.with_layers(BASE.with_attention(positions=KINDS[kind], **attention), *(layers or BASE.layers))


def kinds_of_layers(kind: str) -> UniformConfig:
    """One of each layer that has scores."""
    layers = (
        SoftmaxConfig(memory=3),
        SOFTMAX,
        SHARED,
        WindowConfig(3, 2, memory=4),
        HybridConfig(3, small.K, update_rule="gated", gate="data", sinks=1, merge="token"),
        small.DROPPED,
    )
    return model(kind, *layers, softcap=3.0)


def t5(made: Any) -> Score:
    """q·k + b, b of the head and the bucket (Raffel et al. 2020)."""
    table, bucket = made.table.weight.numpy(), [0, 1, 2, 2, 3, 4, 4, 4]  # ln(n/2) / ln(7/2) · 3: 3.5 and 5.3 are edges
    return lambda q, k, n, h: q @ k + table[bucket[min(n, 7)], h]


def shaw(made: Any) -> Score:
    """q·(k + a), a of the distance (Shaw et al. 2018, eq. 4)."""
    table = made.table.weight.numpy()
    return lambda q, k, n, h: q @ (k + table[min(n, 4)])


def transformer_xl(made: Any) -> Score:
    """(q + u)·k + (q + v)·W R (Dai et al. 2019, section 3.3)."""
    D, g = H * V, H // small.G
    scale, u, v = V**-0.5, made.u.numpy(), made.v.numpy()
    W = made.project.weight.numpy().reshape(small.G, V, D)
    frequency = 1 / 10000 ** (np.arange(0, D, 2) / D)

    def score(q: reference.Array, k: reference.Array, n: int, h: int) -> float:
        R = np.concatenate([np.sin(n * frequency), np.cos(n * frequency)])
        return float((q + u[h] * scale) @ k + (q + v[h] * scale) @ W[h // g] @ R)

    return score


def da_transformer(made: Any) -> Score:
    """relu(q·k) (1 + e^v) / (1 + e^(v - w n)) (Wu et al. 2021)."""
    w, v = made.w.numpy(), made.v.numpy()
    return lambda q, k, n, h: max(q @ k, 0.0) * (1 + np.exp(v[h])) / (1 + np.exp(v[h] - w[h] * n))


DEFINITIONS = {"t5": t5, "shaw": shaw, "transformer_xl": transformer_xl, "da_transformer": da_transformer}


@kinds
@pytest.mark.parametrize("inside", [SOFTMAX, WINDOW, WindowConfig(5, 0)], ids=["softmax", "sinks", "window"])
@torch.no_grad()
def test_sequence_and_step_are_the_definition(kind: str, inside: Any) -> None:
    made, x = random_mixer(model(kind), inside), text(19)
    q, k, v = (layer(x).unflatten(-1, (-1, V)).numpy() for layer in (made.q, made.k, made.v))
    seen = (19, 0) if inside is SOFTMAX else (inside.window, inside.sinks)
    o = reference.windowed(q / np.sqrt(V), k, v, *seen, score=DEFINITIONS[kind](made.inner.positions))
    expected = made.output(torch.from_numpy(o))
    for y in (made(x, start(made))[0], by_steps(made, x, start(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)


def start(made: Alone, batch: int = small.B) -> Any:
    """The state before a text, with empty caches."""
    if made.config is not SOFTMAX:
        return empty(made, batch)
    return {s.name: torch.zeros(s.dims(batch, 0), dtype=torch.float64) for s in made.state_spec()}


@torch.no_grad()
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(KINDS)),
    st.tuples(st.integers(1, 40), st.integers(0, 3)),
    st.integers(1, 40),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
def test_steps_are_the_sequence(kind: str, size: tuple[int, int], length: int, places: list[int]) -> None:
    made = random_mixer(model(kind), WindowConfig(*size))
    x, state = text(length, batch=len(places)), buffers(made, len(places))
    y, after = made(x, state, places)
    stepped, end = by_steps(made, x, state, places)
    torch.testing.assert_close(stepped, y, rtol=2e-6, atol=2e-6)
    for name, value in end.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-12)


@kinds
@torch.no_grad()
def test_far_from_the_first_token_every_layer_does_the_same(kind: str) -> None:
    """Only distances count, and steps equal the sequence, whole or split, from nonzero states."""
    made = small.model(kinds_of_layers(kind)).double()
    ids, states = small.ids(length=11), small.states(made)
    states[POSITION] = torch.full_like(states[POSITION], 50)
    logits, after = made.prefill(ids, states)
    far = {**states, POSITION: states[POSITION] + 10**6}
    torch.testing.assert_close(made.prefill(ids, far)[0], logits, rtol=1e-6, atol=1e-6)
    stepped, after_steps = small.by_steps(made, ids, states)
    torch.testing.assert_close(stepped, logits, rtol=1e-6, atol=1e-6)
    small.assert_states(after_steps, after, 1e-6)
    first, between = made.prefill(ids[:, :4], states)
    second, end = made.prefill(ids[:, 4:], between)
    torch.testing.assert_close(torch.cat([first, second], 1), logits, rtol=1e-6, atol=1e-6)
    small.assert_states(end, after, 1e-6)


@kinds
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_graphs_compute_it(kind: str, target: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", kinds_of_layers(kind), target=target, prefill=True, draft_check=True)
    assert small.proof(made, tmp_path / "g.onnx", 40).passed


@kinds
def test_an_npu_graph_has_it_in_windows(kind: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", model(kind, WINDOW, HYBRID), target="npu")
    assert small.proof(made, tmp_path / "g.onnx", 40).passed


@kinds
def test_a_context_is_the_cache_up_to_its_end(kind: str, tmp_path: Path) -> None:
    config = model(kind, SOFTMAX, SoftmaxConfig(memory=3))
    made = small.model(config)
    bounded = with_context(made, 9)
    ids = small.ids(length=9)
    torch.testing.assert_close(bounded(ids), made(ids), rtol=1e-4, atol=1e-4)
    done, report = small.graph(tmp_path / "g.onnx", config, context="9", prefill=True)
    assert not any(state.grows for state in report.signature.states)
    assert small.proof(done, tmp_path / "g.onnx", 9).passed


@kinds
def test_a_saved_model_is_the_same(kind: str, tmp_path: Path) -> None:
    made = small.model(kinds_of_layers(kind))
    checkpoint.save(tmp_path / "m.pt", made, None, {})
    ids = small.ids()
    assert torch.equal(checkpoint.load(tmp_path / "m.pt").model(ids), made(ids))


@kinds
def test_every_weight_learns(kind: str) -> None:
    made = small.model(kinds_of_layers(kind))
    small.assert_learns(made, made(small.ids(length=11)))


def test_a_folded_span_has_t5s_bias_in_its_masks(tmp_path: Path) -> None:
    config = model("t5", SpanConfig(9, ramp=3), small.DROPPED)
    made, _ = small.graph(tmp_path / "g.onnx", config, prefill=True)
    assert small.proof(made, tmp_path / "g.onnx", 40).passed
    table = made.model.blocks[0].parts[0].inner.positions.table.weight
    before = made.model(small.ids())
    table.data += torch.arange(len(table))[:, None]
    assert (made.model(small.ids()) - before).abs().max() > 1e-3


@pytest.mark.parametrize("count, last", [(32, 128), (8, 20), (7, 20), (2, 5)])
def test_buckets_are_those_of_transformers(count: int, last: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    behind = np.arange(2 * last)
    theirs = T5Attention._relative_position_bucket(torch.from_numpy(-behind), False, count, last)
    np.testing.assert_array_equal(buckets(behind, T5Config(count, last)), theirs.numpy())


def test_wrap_preserves_distances() -> None:
    for kind in KINDS:
        made, ids = small.model(kinds_of_layers(kind)), small.ids(length=13)
        expected = made(ids)
        made.end_positions("wrap:5")
        torch.testing.assert_close(made(ids), expected)


def test_a_position_scale_is_of_all_that_q_meets() -> None:
    """Doubling q, u and v equals doubling the scale."""
    made = random_mixer(model("transformer_xl"), SOFTMAX)
    x, twice = text(9), random_mixer(model("transformer_xl", scale=2 * V**-0.5), SOFTMAX)
    expected = twice(x, start(twice))[0]
    for weight in (made.q.weight, made.q.bias, made.positions.u, made.positions.v):
        weight.data *= 2.0
    torch.testing.assert_close(made(x, start(made))[0], expected)


def test_a_converted_layer_keeps_its_positions() -> None:
    for kind in KINDS:
        teacher = small.model(model(kind, SOFTMAX, SOFTMAX)).double()
        student = convert(teacher, WindowConfig(9, 0), "all")
        assert student.state_dict().keys() == teacher.state_dict().keys()
        ids = small.ids(length=9)
        torch.testing.assert_close(student(ids), teacher(ids), rtol=1e-6, atol=1e-6)
        with pytest.raises(UserError, match="linear ones that drop them"):
            convert(teacher, linear(), "0")
        dropped = convert(teacher, linear(positions="drop"), "0")
        assert not any("blocks.0" in name and "positions" in name for name in dropped.state_dict())


def refused(kind: str, layer: str) -> str:
    layers = "softmax, window, span or hybrid" if kind == "t5" else "softmax, window or hybrid"
    return f"{layers} layers with {kind} positions, or linear ones that drop them; received a {layer} layer; choose"


@pytest.mark.parametrize(
    "change, message",
    [
        *((lambda kind=kind: model(kind, linear()), refused(kind, "linear")) for kind in KINDS),
        *(
            (lambda kind=kind: model(kind, SpanConfig(9, ramp=3)), refused(kind, "span"))
            for kind in KINDS
            if kind != "t5"
        ),
        (
            lambda: small.translator(base=dataclasses.replace(BASE, position="shaw")),
            "shaw positions only in causal attention; received encoder_attention; choose others",
        ),
        (lambda: T5Config(buckets=1), "at least 2 buckets; received 1; correct buckets"),
        (
            lambda: T5Config(buckets=32, max_distance=16),
            "a max_distance of more than 16, the buckets of one distance each; received 16; correct max_distance",
        ),
        (lambda: ShawConfig(max_distance=0), "max_distance to be an integer from 1 to 65536; received 0"),
        (lambda: model("transformer_xl", SOFTMAX, head_size=3), "an even head_size of at most"),
    ],
)
def test_unsupported(change: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        change()
    assert str(caught.value).startswith(f"expected {message}")

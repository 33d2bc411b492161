"""A window and a compressed memory against their definition in NumPy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
from model.mixers.alone import Alone, buffers, by_steps, empty, random_mixer, text
from reference import Array
from small import GPT2, LLAMA, SOFTMAX, B, G, H, V
from t2r_export.config.positions import PositionConfig, T5Config
from t2r_export.convert import convert
from t2r_export.lab.config.compressive import CompressiveConfig
from t2r_export.lab.config.positions import ShawConfig, TransformerXLConfig
from t2r_runtime.errors import UserError

COMPRESSIONS = CompressiveConfig.COMPRESSIONS
POSITIONS: dict[str, PositionConfig | None] = {
    "none": None,
    "t5": T5Config(buckets=5, max_distance=7),
    "shaw": ShawConfig(max_distance=4),
    "transformer_xl": TransformerXLConfig(),
}


def model(kind: str = "none", *layers: Any) -> Any:
    base = dataclasses.replace(GPT2, position="none", max_positions=None, layers=layers or (SOFTMAX,))
    return base.with_attention(positions=POSITIONS[kind])


def compressed(made: Alone, name: str, block: Array) -> Array:
    """Rows (c, d) -> (d)."""
    if made.config.compression == "conv":
        kernel = getattr(made.inner, f"kernel_{name}").numpy().reshape(len(block), V, V)
        return np.einsum("ci,cij->j", block, kernel)
    found: Array = {"mean": block.mean(0), "max": block.max(0), "last": block[-1]}[made.config.compression]
    return found


def by_definition(made: Alone, x: Tensor) -> Tensor:
    """Token by token, from the first of the text; T5's bias is the only position encoding here."""
    q, k, v = (layer(x).unflatten(-1, (-1, V)).numpy() for layer in (made.q, made.k, made.v))
    W, c, M = made.config.window, made.config.rate, made.config.blocks
    o = np.empty(q.shape)
    for b, p, h in np.ndindex(*q.shape[:3]):
        g, n = h // (H // G), max(p + 1 - W, 0) // c
        blocks = range(max(n - M, 0), n)
        keys, values = (
            np.array(
                [compressed(made, name, y[b, i * c : (i + 1) * c, g]) for i in blocks]
                + [y[b, i, g] for i in range(c * n, p + 1)]
            )
            for name, y in (("k", k), ("v", v))
        )
        scores = keys @ q[b, p, h] / np.sqrt(V)
        if made.positions is not None:
            bucket = [0, 1, 2, 2, 3, 4, 4, 4]
            behind = np.arange(len(keys))[::-1]  # each block counts as one token
            scores += made.positions.table.weight.numpy()[[bucket[min(i, 7)] for i in behind], h]
        weights = np.exp(scores)
        o[b, p, h] = weights / weights.sum() @ values
    return made.output(torch.from_numpy(o))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["none", "t5"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("window, blocks, rate", [(5, 3, 4), (1, 2, 2), (34, 1, 3)])
def test_sequence_and_step_are_the_definition(kind: str, compression: str, window: int, blocks: int, rate: int) -> None:
    made, x = random_mixer(model(kind), CompressiveConfig(window, blocks, rate, compression)), text(43)
    expected = by_definition(made, x)
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)


sizes = st.tuples(st.integers(1, 36), st.integers(1, 5), st.integers(2, 6), st.sampled_from(COMPRESSIONS))
starts = st.lists(st.integers(0, 60), min_size=1, max_size=3)


@torch.no_grad()
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(POSITIONS)), sizes, st.integers(1, 40), starts)
def test_steps_are_the_sequence(kind: str, size: Any, length: int, start: list[int]) -> None:
    made = random_mixer(model(kind), CompressiveConfig(*size))
    x, state = text(length, batch=len(start)), buffers(made, len(start))
    y, after = made(x, state, start)
    stepped, end = by_steps(made, x, state, start)
    torch.testing.assert_close(stepped, y, rtol=2e-6, atol=2e-6)
    small.assert_states(end, after, 1e-12)


@torch.no_grad()
@settings(max_examples=12, deadline=None)
@given(sizes, st.integers(2, 40), st.data())
def test_split_anywhere(size: Any, length: int, data: st.DataObject) -> None:
    made, x, at = (
        random_mixer(model("t5"), CompressiveConfig(*size)),
        text(length),
        data.draw(st.integers(1, length - 1)),
    )
    state, start = buffers(made, B), [3, 40]
    whole, end = made(x, state, start)
    first, between = made(x[:, :at], state, start)
    second, after = made(x[:, at:], between, [n + at for n in start])
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=2e-6, atol=2e-6)
    small.assert_states(after, end, 1e-12)


LAYERS = tuple(CompressiveConfig(5, 3, 2 + i, compression) for i, compression in enumerate(COMPRESSIONS))


@pytest.mark.parametrize("kind", ["t5", "shaw", "transformer_xl"])
def test_graphs_compute_it(kind: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", model(kind, *LAYERS), prefill=True, draft_check=True)
    assert small.proof(made, tmp_path / "g.onnx", 50).passed


def test_an_npu_graph_has_it(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", model("transformer_xl", *LAYERS), target="npu")
    assert small.proof(made, tmp_path / "g.onnx", 50).passed


@torch.no_grad()
def test_equals_softmax_before_a_block_leaves() -> None:
    teacher = small.model(model("t5", SOFTMAX, SOFTMAX)).double()
    student = convert(teacher, CompressiveConfig(7, 2, 3, "mean"))
    assert student.state_dict().keys() == teacher.state_dict().keys()
    ids = small.ids(length=9)
    torch.testing.assert_close(student(ids), teacher(ids), rtol=2e-6, atol=2e-6)
    longer = small.ids(length=12)
    assert (student(longer) - teacher(longer))[:, 9:].abs().max() > 1e-3


@torch.no_grad()
def test_a_convolution_is_a_mean_at_first() -> None:
    teacher, ids = small.model(model("none", SOFTMAX)).double(), small.ids(length=20)
    mean, conv = (convert(teacher, CompressiveConfig(3, 2, 4, compression)) for compression in ("mean", "conv"))
    torch.testing.assert_close(conv(ids), mean(ids))


def test_every_weight_learns() -> None:
    made = small.model(model("transformer_xl", *LAYERS))
    small.assert_learns(made, made(small.ids(length=21)))


def test_state_spec() -> None:
    made = random_mixer(model(), CompressiveConfig(5, 3, 4))
    shapes = {s.name: s.shape for s in made.state_spec()}
    near, memory = ("B", G, 8, V), ("B", G, 3, V)
    assert shapes == {"k": near, "v": near, "block_k": memory, "block_v": memory}
    assert made.memory_length() == 8 + 3 * 4


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda: CompressiveConfig(0, 3), "window to be an integer from 1 to"),
        (lambda: CompressiveConfig(3, 0), "blocks to be an integer from 1 to"),
        (lambda: CompressiveConfig(3, 3, 1), "rate to be an integer from 2 to"),
        (lambda: CompressiveConfig(3, 3, 2, "sum"), "compression to be one of conv, mean, max, last; received 'sum'"),
        (
            lambda: small.with_layers(LLAMA, CompressiveConfig(3, 3)),
            "compressive layers without rotary positions: keys of several positions become one; received rotary",
        ),
    ],
)
def test_unsupported(change: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        change()
    assert str(caught.value).startswith(f"expected {message}")

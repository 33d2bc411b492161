"""Layers that share attention weights, against their definition, and the layers below that lend them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

import small
from small import GPT2, LLAMA, SHARED, SOFTMAX, WIDTH, B, G, H, M, T, V
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.parts import CrossConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.lab.config.recurrent import LSTMConfig
from t2r_export.model.ops import State
from t2r_export.model.parts.attention import Attention
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.parts.cross import Cross
from t2r_export.model.positions.rotary import Rotary
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import quantize
from t2r_export.training.layerwise import Align, Transfer
from t2r_export.training.stages import Task
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

PAST = 5  # tokens in the caches
ROTARY = LLAMA.with_attention(kv_heads=G, qk_norm=True, softcap=2.0)
LENGTHS = torch.tensor([M, M - 4], dtype=torch.int32)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(mixer: Part) -> Part:
    mixer.double().eval()
    for number, weight in enumerate(mixer.parameters()):
        weight.data = 0.5 * random(*weight.shape, seed=number)
    return mixer


def pair(base: UniformConfig) -> tuple[Part, Part, Step[Tensor]]:
    """A softmax layer, one that shares its weights, and a step of T tokens behind `PAST`."""
    config = small.with_layers(base, SOFTMAX, SHARED)
    below, above = (drawn(block.parts[0]) for block in Transformer(config.build()).blocks)
    assert isinstance(above, Attention) and not hasattr(above, "q")
    rotary = base.attention.rotary if base.attention is not None else None
    ropes = [] if rotary is None else [Rotary(rotary, V)]
    return below, above, Step(TorchOps(T, random(1, seed=0)), torch.full((B,), PAST, dtype=torch.int32), ropes)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def projected(layer: Any, name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """A projection of one token, split into heads."""
    projection = getattr(layer, name)
    return np.asarray(projection.weight.detach().numpy() @ x + projection.bias.detach().numpy()).reshape(heads, -1)


def defined(below: Any, above: Any, x: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
    """Output of `above`: its values (G, V) each, weighted by `below`'s query of row x and by the keys."""
    q, o = projected(below, "q", x, H), []
    for head in range(H):
        group = head * G // H
        weights = softmax(np.array([q[head] @ key[group] for key in keys]) * V**-0.5)
        o.append(sum(w * value[group] for w, value in zip(weights, values, strict=True)))
    return projected(above, "o", np.concatenate(o), 1)[0]


@torch.no_grad()
def test_weights_are_those_of_the_layer_below() -> None:
    """Token by token: q and k of one layer's input, v of the other's."""
    below, above, step = pair(GPT2)
    x, y = (random(B, T, WIDTH, seed=seed) for seed in (1, 2))
    state = {name: random(B, G, PAST, V, seed=seed) for seed, name in enumerate(("k", "v", "own"))}
    below(x.flatten(0, 1), {name: state[name] for name in ("k", "v")}, step)
    received, after = above(y.flatten(0, 1), {"v": state["own"]}, step)
    assert after.keys() == {"v"}
    for row in range(B):
        keys, values = list(state["k"][row].numpy().swapaxes(0, 1)), list(state["own"][row].numpy().swapaxes(0, 1))
        for t in range(T):
            keys.append(projected(below, "k", x[row, t].numpy(), G))
            values.append(projected(above, "v", y[row, t].numpy(), G))
            expected = defined(below, above, x[row, t].numpy(), keys, values)
            np.testing.assert_allclose(received[row * T + t].numpy(), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(after["v"][row].numpy(), np.stack(values, 1), rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("base", [GPT2, LLAMA, ROTARY], ids=["gpt2", "llama", "rotary"])
def test_shared_layer_with_equal_values(base: UniformConfig) -> None:
    """A layer that shares weights equals the lender, and lending changes no result."""
    below, above, step = pair(base)
    above.load_state_dict({name: w for name, w in below.state_dict().items() if name in above.state_dict()})
    x = random(B * T, WIDTH, seed=1)
    state: State[Tensor] = {name: random(B, G, PAST, V, seed=seed) for seed, name in enumerate(("k", "v"))}
    lent, _ = below(x, state, step)
    torch.testing.assert_close(above(x, {"v": state["v"]}, step)[0], lent, rtol=1e-10, atol=1e-10)
    alone = Transformer(small.with_layers(base, SOFTMAX).build()).blocks[0].parts[0].double()
    alone.load_state_dict(below.state_dict())
    torch.testing.assert_close(alone(x, state, step)[0], lent, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_weights_over_a_source() -> None:
    attention = GPT2.attention
    assert attention is not None
    heads = dataclasses.asdict(attention)
    below, above = (drawn(Cross(Site(WIDTH), CrossConfig(inside=inside, **heads))) for inside in (SOFTMAX, SHARED))
    encoded, x, y = random(B, M, WIDTH, seed=1), random(B, T, WIDTH, seed=2), random(B, T, WIDTH, seed=3)
    source: Step[Tensor] = Step(TorchOps(M), None, [], lengths=LENGTHS)
    states = [layer.read(encoded.flatten(0, 1), source) for layer in (below, above)]
    assert states[1].keys() == {"source_v"}
    step: Step[Tensor] = Step(TorchOps(T), None, [], lengths=LENGTHS)
    below(x.flatten(0, 1), states[0], step)
    received, after = above(y.flatten(0, 1), states[1], step)
    assert after == {}
    for row, length in enumerate(LENGTHS.tolist()):
        tokens = encoded[row, :length].numpy()
        keys, values = ([projected(*of, token, G) for token in tokens] for of in ((below, "k"), (above, "v")))
        for t in range(T):
            expected = defined(below, above, x[row, t].numpy(), keys, values)
            np.testing.assert_allclose(received[row * T + t].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_consecutive_shared_layers() -> None:
    made, ids = small.model("shared_weights"), small.ids()
    states = small.states(made)
    assert [s.name for s in made.state_spec()] == ["k.0", "v.0", "v.1", "v.2", "position"]
    expected, after = small.by_steps(made, ids, states)
    received, end = made.prefill(ids, states)
    torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-4)
    small.assert_states(end, after, 1e-5)
    received.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in made.parameters())


@pytest.mark.parametrize("prefill", [False, True])
def test_a_graph_computes_scores_once(prefill: bool, tmp_path: Path) -> None:
    """One Softmax for all layers that share; the lender has no more products than without sharing."""
    counts = []
    for layers in ((SOFTMAX, SHARED, SHARED), (SOFTMAX,) * 3):
        _, report = small.graph(tmp_path / f"{len(counts)}.onnx", small.with_layers(LLAMA, *layers), prefill=prefill)
        name = report.signature.graphs["prefill"] if prefill else f"{len(counts)}.onnx"
        counts.append(Counter(node.op_type for node in onnx.load(tmp_path / name, load_external_data=False).graph.node))
    shared, alone = counts
    assert (shared["Softmax"], alone["Softmax"]) == (1, 3)
    assert shared["MatMul"] == 2 + 1 + 1  # scores and values, and values twice
    assert alone["MatMul"] == 6


@pytest.mark.parametrize("scheme", ["w8", "fp16"])
def test_quantized(scheme: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", "shared_weights", prefill=True)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    assert {spec.name for spec in Decoder(tmp_path / "q.onnx").signature.states} >= {"k.0", "v.0", "v.1", "v.2"}
    small.proof(made, tmp_path / "q.onnx", 8)  # it runs; so small a model may lose more than the tolerance


BELOW = "a softmax layer without memory below"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"layers": (SHARED, SOFTMAX)}, f"{BELOW} layer 0, which shares its attention weights; received none; choose"),
    ({"layers": (LSTMConfig(), SHARED)}, f"{BELOW} layer 1, which shares its attention weights; received lstm; choose"),
    (
        {"layers": (SoftmaxConfig(memory=3), SHARED)},
        f"{BELOW} layer 1, which shares its attention weights; received so",
    ),
    ({"crosses": (SHARED, SHARED)}, f"{BELOW} cross layer 0, which shares its attention weights; received none"),
    (
        {"crosses": (small.LINEAR, SHARED)},
        f"{BELOW} cross layer 1, which shares its attention weights; received linear",
    ),
    (
        {"crosses": (MergeConfig(), SOFTMAX)},
        f"{BELOW} layer 1, which shares its attention weights; received softmax, merged with the so",
    ),
    ({"crosses": (MergeConfig(), MergeConfig())}, "softmax layers, or linear layers with the update rule"),
]


@pytest.mark.parametrize("changes, message", WRONG)
def test_invalid_sharing(changes: dict[str, Any], message: str) -> None:
    base = small.translator(base=small.with_layers(GPT2, SOFTMAX, SHARED))
    with pytest.raises(UserError, match=re.escape(message)):
        dataclasses.replace(base, **changes)


def test_heads_are_the_same() -> None:
    with pytest.raises(UserError, match="equal numbers of heads in layers that share attention weights; received"):
        small.with_layers(GPT2, SOFTMAX, small.attention(GPT2, SHARED, kv_heads=H))
    assert small.with_layers(GPT2, SOFTMAX, small.attention(GPT2, SHARED, head_size=7))


def test_conversion_and_training() -> None:
    """Conversion keeps the softmax model's values and outputs; its layers cannot be aligned one by one."""
    teacher = small.model("softmax")
    student = convert(teacher, SHARED, "1")
    ours, theirs = student.state_dict(), teacher.state_dict()
    assert {name for name in theirs if name not in ours} == {f"blocks.1.parts.0.{n}.{p}" for n in "qk" for p in
                                                             ("weight", "bias")}  # fmt: skip
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    with pytest.raises(UserError, match="layers that can be run alone, for the align stage; received layer 1, which"):
        Align(student, teacher)
    with pytest.raises(UserError, match="a student whose mixers have parameters that its teacher's lack"):
        Transfer(student, teacher)
    Task(student, None)
    with pytest.raises(UserError, match="below layer 0, which shares its attention weights; received none"):
        convert(teacher, SHARED)

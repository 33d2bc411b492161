"""Layers of recurrent families in our operators equal those of transformers: steps, sequences and graphs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from torch import Tensor

from family_blocks import BLOCKS, Block
from t2r_export.config.targets import TARGETS
from t2r_export.graph.pieces import CHUNK
from t2r_export.graph.recorder import Value, value_info
from t2r_export.graph.weights import array
from t2r_export.model.torch_ops import TorchOps

B = 2

pytestmark = pytest.mark.usefixtures("newest_opset")


@lru_cache
def block(name: str) -> Block:
    return BLOCKS[name]()


def rows(made: Block, T: int, seed: int = 0) -> Tensor:
    return torch.randn(B, T, made.width, generator=torch.Generator().manual_seed(seed))


def states(made: Block, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(B, *shape, generator=generator) for name, shape in made.states.items()}


@torch.no_grad()
def sequence(made: Block, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    y, after = made.run(x.flatten(0, 1), state, TorchOps(x.shape[1], x))
    return y.view(*x.shape[:2], -1), after


@torch.no_grad()
def steps(made: Block, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    found = []
    for t in range(x.shape[1]):
        y, state = made.run(x[:, t], state, TorchOps(None, x))
        found.append(y)
    return torch.stack(found, 1), state


@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_a_text_is_what_transformers_computes(name: str) -> None:
    """Without a cache, since transformers' decode does not clamp dt as its prompt does."""
    made, empty = block(name), {key: 0 * value for key, value in states(block(name)).items()}
    x = rows(made, 13)
    expected = made.peer(x)
    for form in (sequence, steps):
        torch.testing.assert_close(form(made, x, empty)[0], expected, rtol=2e-5, atol=2e-5)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(BLOCKS)), st.integers(1, 40), st.integers(0, 40), st.integers(0, 99))
def test_property_any_split_is_the_text(name: str, T: int, at: int, seed: int) -> None:
    made, at = block(name), min(at, T)
    x, state = rows(made, T, seed), states(made, seed + 1)
    whole, end = sequence(made, x, state)
    first, between = steps(made, x[:, :at], state) if at else (x[:, :0, :0], state)
    second, after = sequence(made, x[:, at:], between) if at < T else (x[:, :0, :0], between)
    parts = [part for part in (first, second) if part.shape[1]]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)
    for key, value in after.items():
        torch.testing.assert_close(value, end[key], rtol=1e-4, atol=1e-4)


def graph(made: Block, target: str, many: bool) -> ort.InferenceSession:
    ops = TARGETS[target].ops(made, "B", "T" if many else None)
    x = Value("x", "float32", ("B", "T", made.width) if many else ("B", made.width))
    past = {name: Value(f"past_{name}", "float32", ("B", *shape)) for name, shape in made.states.items()}
    y, after = made.run(ops.flatten_tokens(x), past, ops)
    outputs = [ops.settled(value) for value in (y, *(after[name] for name in past))]
    initializers = [*ops.constants.values()]
    initializers += [onnx.numpy_helper.from_array(array(weight), name) for name, weight in ops.weights.items()]
    inputs, results = ([value_info(v) for v in values] for values in ((x, *past.values()), outputs))
    opsets = [helper.make_opsetid(*pair) for pair in TARGETS[target].opsets.items()]
    model = helper.make_model(
        helper.make_graph(ops.nodes, "test", inputs, results, initializers),
        opset_imports=opsets,
        ir_version=TARGETS[target].ir_version,
    )
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("name", BLOCKS)
def test_graphs_are_the_eager_layer(name: str, target: str) -> None:
    made, T = block(name), CHUNK + 5
    x, state = rows(made, T), states(made)
    expected, after = sequence(made, x, state)
    past = {f"past_{key}": value.numpy() for key, value in state.items()}
    y, *end = graph(made, target, many=True).run(None, {"x": x.numpy(), **past})
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=2e-4, atol=2e-4)
    for value, wanted in zip(end, after.values(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-4)
    step, kept = graph(made, target, many=False), list(state)
    for t in range(5):
        y, *end = step.run(None, {"x": x[:, t].numpy(), **past})
        np.testing.assert_allclose(y, expected[:, t], rtol=2e-5, atol=2e-5)
        past = {f"past_{key}": value for key, value in zip(kept, end, strict=True)}

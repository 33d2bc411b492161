"""Shapes that a graph defers until an operator needs them, and names of weights and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import WEIGHTS, Weights, Y, assert_recorded_is_computed, floats
from small import WIDTH, B
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Value
from t2r_export.graph.weights import array

pytestmark = pytest.mark.usefixtures("newest_opset")
dims = st.integers(1, 4)
BINARY = {
    "add": lambda ops, w, x: ops.add(*x),
    "sub": lambda ops, w, x: ops.sub(*x),
    "mul": lambda ops, w, x: ops.mul(*x),
}


@settings(max_examples=15)
@given(st.sampled_from(sorted(BINARY)), st.lists(st.tuples(dims, st.booleans(), st.booleans()), max_size=3))
def test_broadcasting(op: str, axes: list[tuple[int, bool, bool]]) -> None:
    left, right = ([1 if axis[side] else axis[0] for axis in axes] for side in (1, 2))
    assert_recorded_is_computed(BINARY[op], floats(B, *left), floats(B, *right, seed=1))


@settings(max_examples=15)
@given(st.lists(dims, min_size=1, max_size=3), st.integers(1, 3), st.booleans())
def test_split_and_concat_are_inverses(sizes: list[int], axis: int, last: bool) -> None:
    shape = [B, 2, 3, 4]
    shape[axis] = sum(sizes)
    at = axis - 4 if last else axis
    assert_recorded_is_computed(lambda ops, w, x: ops.concat(ops.split(x[0], sizes, axis=at), axis=at), floats(*shape))


@settings(max_examples=10)
@given(st.permutations([1, 2, 3]), st.integers(-5, 4))
def test_transpose_and_unsqueeze(axes: list[int], place: int) -> None:
    assert_recorded_is_computed(lambda ops, w, x: ops.transpose(x[0], [0, *axes]), Y)
    if place not in (0, -5):  # in front of the batch the symbolic size would move
        assert_recorded_is_computed(lambda ops, w, x: ops.unsqueeze(x[0], place), Y)


SHAPES = [(0, 60), (0, 3, 20), (0, 15, 4), (0, 3, 5, 4), (0, 1, 3, 20), (0, 3, 1, 5, 4), (0, 60, 1), (0, 12, 5)]
LAZY: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda ops, x: ops.tanh(x),
    "number": lambda ops, x: ops.mul(x, 0.7),
    "row": lambda ops, x: ops.add(x, ops.constant(np.linspace(-1, 1, x.shape[-1]), "float32", f"row_{x.shape[-1]}")),
    "softmax": lambda ops, x: ops.softmax(x),
    "mean": lambda ops, x: ops.sub(x, ops.mean(x)),
    "max": lambda ops, x: ops.tanh(ops.mul(ops.reduce_max(x), x)),  # bounds numbers, so that rounding stays comparable
    "itself": lambda ops, x: ops.mul(x, ops.tanh(x)),
    "halves": lambda ops, x: ops.concat(ops.split(x, [1, x.shape[-1] - 1])[::-1]) if x.shape[-1] > 1 else x,
    "last": lambda ops, x: ops.squeeze(ops.unsqueeze(x, -1), -1),
    "cast": lambda ops, x: ops.cast(ops.cast(ops.mul(x, 4.0), "int32"), "float32"),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(sorted(LAZY))), min_size=1, max_size=5))
def test_no_change_of_shape_is_lost(steps: list[tuple[tuple[int, ...], str]]) -> None:
    """A graph defers a reshape until an operator needs it; operators in between give the same numbers."""

    def build(ops: Any, w: Weights, x: list[Any]) -> Any:
        y = x[0]
        for shape, name in steps:
            y = ops.reshape(y, shape)
            y = LAZY[name](ops, y)
        return y

    assert_recorded_is_computed(build, floats(B, 60))


@settings(max_examples=30)
@given(st.sampled_from(sorted(BINARY)), st.sampled_from(SHAPES[:-1]), st.sampled_from(SHAPES[:-1]), st.data())
def test_two_shapes_meet(op: str, first: tuple[int, ...], second: tuple[int, ...], data: st.DataObject) -> None:
    """Two deferred reshapes as operands, one of which may have axes of size 1."""
    met = data.draw(st.sampled_from([(0, 3, 5, 4), (0, 15, 4), (0, 60)]))
    narrow = data.draw(st.booleans())

    def build(ops: Any, w: Weights, x: list[Any]) -> Any:
        left, right = (
            ops.reshape(ops.tanh(ops.reshape(y, shape)), met) for y, shape in zip(x, (first, second), strict=True)
        )
        return BINARY[op](ops, w, [left, ops.mean(right) if narrow else right])

    assert_recorded_is_computed(build, floats(B, 60), floats(B, 60, seed=1))


def test_a_growing_axis() -> None:
    ops = GraphOps(WEIGHTS, "B")
    cache, new = Value("cache", "float32", ("B", 3, "T", 4)), Value("new", "float32", ("B", 3, 1, 4))
    assert ops.concat([cache, new], axis=2).shape == ("B", 3, "T+1", 4)


def test_weights_and_nodes_keep_their_names() -> None:
    ops = GraphOps(WEIGHTS, "B")
    x = Value("x", "float32", ("B", WIDTH))
    first, second = ops.linear(x, WEIGHTS.weight, WEIGHTS.bias), ops.linear(x, WEIGHTS.weight, None)
    ops.maximum(first, 0.5)
    ops.minimum(second, 0.5)
    assert list(ops.weights) == ["weight", "bias"]
    assert ops.weights["weight"] is WEIGHTS.weight
    assert [node.name for node in ops.nodes][:2] == ["weight", "weight_gemm"]
    assert len(ops.constants) == 1, "one constant for both uses"
    ops.rename({first.name: "logits"})
    assert ops.nodes[0].output[0] == ops.nodes[2].input[0] == "logits"


def test_layers_share_a_product_and_a_name() -> None:
    ops = GraphOps(WEIGHTS, "B")
    layers = WEIGHTS.layers
    ops.linears(Value("x", "float32", ("B", WIDTH)), [[layers["a"], layers["b"]], [layers["c"]]])
    assert [(node.op_type, node.name) for node in ops.nodes] == [("Gemm", "layers.a_b_c"), ("Split", "Split_2")]
    assert list(ops.weights) == ["layers.a_b_c.weight", "layers.a_b_c.bias"]
    np.testing.assert_array_equal(
        array(ops.weights["layers.a_b_c.weight"]), torch.cat([layer.weight for layer in layers.values()]).detach()
    )
    with pytest.raises(AssertionError, match="a bias for all, or for none"):
        ops.linears(Value("x", "float32", ("B", WIDTH)), [[layers["a"], WEIGHTS.bare["b"]]])

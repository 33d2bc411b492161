"""Recording of a graph: deferred shapes, symbolic sizes, and values that layers share."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import small
from small import CONFIGS, LLAMA
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import (
    Dim,
    Recorder,
    Shape,
    Value,
    broadcast,
    factors,
    plus,
    product,
    quotient,
    reshape_sizes,
    resolved,
)


def value(*shape: Dim, stored: Shape | None = None) -> Value:
    return Value("x", "float32", shape, stored)


# -- sizes


@pytest.mark.parametrize(
    "dim, expected",
    [(3, (3, [])), ("T", (1, ["T"])), ("3*T", (3, ["T"])), ("2*3*B*T", (6, ["B", "T"])), ("P+T", (1, ["P+T"]))],
)
def test_factors(dim: Dim, expected: tuple[int, list[str]]) -> None:
    assert factors(dim) == expected


@pytest.mark.parametrize(
    "dims, expected",
    [
        ((), 1),
        ((2, 3), 6),
        (("B", 3, "T"), "3*B*T"),
        (("T", "B"), "B*T"),
        (("3*T", 2), "6*T"),
        (("T", 0), 0),
        (("P+T", 2), "2*P+T"),
    ],
)
def test_product(dims: tuple[Dim, ...], expected: Dim) -> None:
    assert product(dims) == expected


LETTERED = st.lists(st.sampled_from(["B", "T", 2, 3, 5]), min_size=1, max_size=4)


@given(LETTERED, LETTERED)
def test_a_quotient_undoes_a_product(first: list[Dim], second: list[Dim]) -> None:
    whole = product([*first, *second])
    assert quotient(whole, product(second)) == product(first)


def test_a_quotient_that_is_none_is_refused() -> None:
    with pytest.raises(AssertionError):
        quotient("5*T", 2)
    with pytest.raises(ValueError, match="not in list"):
        quotient(6, "T")


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (2, 3, 5),
        ("P", "T", "P+T"),
        ("T", "T", "2*T"),
        ("T+4", -4, "T"),
        ("T", -4, "T+-4"),
        ("T+-4", 4, "T"),
        ("P+T", "T", "P+2*T"),
        ("3*T", 0, "3*T"),
        ("T", "T+2", "2*T+2"),
        (0, "P", "P"),
    ],
)
def test_plus(a: Dim, b: Dim, expected: Dim) -> None:
    assert plus(a, b) == expected


@pytest.mark.parametrize(
    "shape, asked, expected",
    [
        (("B", 3, 5, 4), (0, -1, 4), ("B", 15, 4)),
        (("B", 12), (0, 3, 4), ("B", 3, 4)),
        (("B", 3, "T", 4), (0, 3, -1, 2), ("B", 3, "2*T", 2)),
        (("B", 6, "T", 5), (0, 3, -1, 5), ("B", 3, "2*T", 5)),
        (("B", 3, "2*T", 5), (0, 6, -1, 5), ("B", 6, "T", 5)),
        (("B", "T"), (-1,), ("B*T",)),
        (("B", 1), (-1, 1, 1), ("B", 1, 1)),
    ],
)
def test_resolved(shape: Shape, asked: tuple[int, ...], expected: Shape) -> None:
    assert resolved(shape, asked) == expected


@pytest.mark.parametrize("asked", [(0, 5), (0, 2, 3), (2, -1, 5)])
def test_a_shape_of_another_size_is_refused(asked: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        resolved(("B", 12), asked)


@pytest.mark.parametrize(
    "stored, shape, expected",
    [
        (("B", 12), ("B", 3, 4), [-1, 3, 4]),
        (("B", 3, "T", 4), ("B", "T", 12), [0, -1, 12]),  # a symbolic size that moves
        (("B", 3, "T", 4), ("B", 6, "T", 2), [0, 6, 0, 2]),
        ((2, 12), (2, 3, 4), [2, 3, 4]),
        (("B*T", 12), ("B*T", 3, 4), [-1, 3, 4]),
    ],
)
def test_reshape_sizes(stored: Shape, shape: Shape, expected: list[int]) -> None:
    assert reshape_sizes(stored, shape) == expected


def test_two_letters_that_move_cannot_be_told() -> None:
    with pytest.raises(AssertionError):
        reshape_sizes((12, "B", "T"), ("B", "T", 12))


def test_letters_are_equal_to_themselves_alone() -> None:
    assert broadcast(("B", 1, "T"), (3, 1)) == ("B", 3, "T")
    for other in (("P",), (3,)):
        with pytest.raises(AssertionError):
            broadcast(("T",), other)


# -- values


def test_a_value_knows_how_it_is_stored() -> None:
    x = value("B", 12)
    assert x.stored == ("B", 12)
    y = x.viewed(("B", 3, 4))
    assert (y.name, y.shape, y.stored) == ("x", ("B", 3, 4), ("B", 12))
    assert y.viewed(("B", 12)) == x, "back again is nothing"


def test_reshape_recorded_only_if_needed() -> None:
    ops = GraphOps(nn.Module(), "B")
    x = value("B", 12)
    y = ops.transpose(ops.unsqueeze(ops.reshape(ops.tanh(ops.reshape(x, (0, 3, 4))), (0, 12)), 1), (0, 2, 1))
    assert [node.op_type for node in ops.nodes] == ["Tanh"]
    assert (y.shape, y.stored) == (("B", 12, 1), ("B", 12))
    settled = ops.settled(y)
    assert [node.op_type for node in ops.nodes] == ["Tanh", "Reshape"]
    assert settled.stored == settled.shape == y.shape


def test_a_value_is_settled_once() -> None:
    recorder = Recorder(nn.Module())
    x = value("B", 12)
    assert recorder.settled(x) is x
    first, again = (recorder.settled(x.viewed(("B", 3, 4))) for _ in range(2))
    assert first == again
    assert recorder.settled(x.viewed(("B", 4, 3))) != first
    assert [node.op_type for node in recorder.nodes] == ["Reshape"] * 2
    assert [list(node.input) for node in recorder.nodes] == [["x", name] for name in recorder.constants]


def test_an_operator_takes_what_the_model_sees() -> None:
    ops = GraphOps(nn.Module(), "B")
    ops.matmul(ops.reshape(value("B", 12), (0, 3, 4)), Value("y", "float32", (4, 5)))
    assert [node.op_type for node in ops.nodes] == ["Reshape", "MatMul"]
    assert ops.nodes[1].input[0] == ops.nodes[0].output[0]


def test_the_same_node_is_recorded_once() -> None:
    ops = GraphOps(nn.Module(), "B")
    x, y = value("B", 12), Value("y", "float32", ("B", 12))
    assert ops.exp(x) == ops.exp(x)
    assert ops.add(x, y) == ops.add(x, y) != ops.add(y, y)
    assert ops.split(x, [5, 7]) == ops.split(x, [5, 7]) != ops.split(x, [7, 5])
    assert [node.op_type for node in ops.nodes] == ["Exp", "Add", "Add", "Split", "Split"]


def test_heads_beside_each_other_are_computed_once() -> None:
    ops = GraphOps(nn.Module(), "B")
    heads = ops.split_heads(value("B", 30), 5)  # of size 6
    q, k = ops.split(heads, [3, 2], axis=1)
    q, k = ops.each(ops.relu, q, k)
    q, k = ops.each(ops.relu, q, k)
    ops.prune([q.name, k.name])
    assert [node.op_type for node in ops.nodes] == ["Relu", "Relu", "Split"]
    assert (q.shape, q.stored, k.shape, k.stored) == (("B", 3, 1, 6), ("B", 18), ("B", 2, 1, 6), ("B", 12))


@pytest.mark.parametrize("change", ["order", "one", "shape"])
def test_other_heads_are_computed_each(change: str) -> None:
    ops = GraphOps(nn.Module(), "B")
    q, k = ops.split(ops.split_heads(value("B", 24), 4), [2, 2], axis=1)
    heads = {"order": (k, q), "one": (q, ops.exp(k)), "shape": (ops.reshape(q, (0, 4, 1, 3)), k)}[change]
    found = ops.each(ops.relu, *heads)
    assert [x.shape for x in found] == [x.shape for x in heads]
    assert [node.op_type for node in ops.nodes if node.op_type == "Relu"] == ["Relu"] * 2


# the default student of a rotary model: gated by the token, folded, rotated features
@pytest.mark.parametrize("target, count", [("portable", 54), ("fused", 28)])
def test_nodes_of_a_layer(target: str, count: int, tmp_path: Path) -> None:
    mixer = LinearConfig(update_rule="gated", gate="data", positions="after", folded=True, feature_size=6)
    counts = []
    for layers in (1, 2):
        config = dataclasses.replace(LLAMA, layers=(mixer,) * layers)
        small.graph(tmp_path / "g.onnx", config, target=target)
        counts.append(len(onnx.load(tmp_path / "g.onnx").graph.node))
    assert counts[1] - counts[0] == count


def test_constants_are_stored_once() -> None:
    recorder = Recorder(nn.Module())
    assert recorder.constant([1, 2], "int64") == recorder.constant(np.array([1, 2]), "int64")
    assert recorder.constant([1, 2], "int64") != recorder.constant([[1, 2]], "int64")
    zeros = recorder.constant(np.zeros(100), "float32")
    assert zeros.name == "const_float32_0.0s100_1", "not every one of them is in its name"
    assert len(recorder.constants) == 3


# -- what layers share

SHARED = {name: CONFIGS[name] for name in ("rotary_keep", "hybrid", "hybrid_sum", "hybrid_gated", "window", "mixed")}
SHARED["windows"] = dataclasses.replace(LLAMA, layers=(WindowConfig(3, sinks=2),) * 3)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("layers", [1, 2])
def test_position_and_rotation_recorded_once(name: str, layers: int, tmp_path: Path) -> None:
    """With any number of layers: no layer has a separate position counter or table."""
    config = SHARED[name]
    config = dataclasses.replace(
        config, layers=config.layers * layers, feed_forwards=config.feed_forwards and config.feed_forwards * layers
    )
    made, report = small.graph(tmp_path / "g.onnx", config, prefill=True)
    counted = [state.name for state in report.signature.states if state.dtype == "int32"]
    assert counted == ["position"]
    for path in (report.files[0], report.files[2]):
        graph = onnx.load(path, load_external_data=False).graph
        tables = [tensor.name for tensor in graph.initializer if "table" in tensor.name or "rope" in tensor.name]
        assert len(tables) == len(set(tables))
        known = {"ropes.0.table", "positions.table.weight"}
        assert {name for name in tables if not name.startswith("const_rope_0_")} <= known
        reads = Counter(name for node in graph.node for name in node.input)
        # the rotation at each token's position, and with sinks also at its place behind them
        ends = {(mixer.window, mixer.sinks) for mixer in config.layers if isinstance(mixer, WindowConfig)}
        assert reads["ropes.0.table"] <= 1 + len(ends)
        masks = [name for name in reads if name.startswith(("const_valid_from_", "const_band_"))]
        assert all(reads[name] == 1 for name in masks)
        assert masks or not ends
        assert len([node for node in graph.node if "present_position" in node.output]) == 1
        assert len([node for node in graph.node if "past_position" in node.input]) <= 3

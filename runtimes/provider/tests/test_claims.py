"""What the provider claims, it computes as ONNX Runtime does; what it does not know, it leaves to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
from differential import is_claimed, opened
from one_node import model, on_provider, same_results, several
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph(
    nodes: list[NodeProto],
    inputs: Mapping[str, list[Any] | None],
    outputs: list[str],
    fixed: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    **more: Any,
) -> ModelProto:
    """A model with float32 inputs of these shapes; None is an unknown rank."""
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes,
        "graph",
        [value(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in (fixed or {}).items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


NODE = helper.make_node
AXES_OF_OLD = {
    "Squeeze": (NODE("Squeeze", ["x"], ["y"], axes=[0]), [1, 3, 1]),
    "Unsqueeze": (NODE("Unsqueeze", ["x"], ["y"], axes=[1]), [3]),
    "Split": (NODE("Split", ["x"], ["y", "z"], axis=1, split=[1, 3]), [2, 4]),
    "Softmax": (NODE("Softmax", ["x"], ["y"], axis=1), [2, 3, 4]),
    "ReduceSum": (NODE("ReduceSum", ["x"], ["y"], axes=[0]), [2, 3]),
    "Relu": (NODE("Relu", ["x"], ["y"]), [2, 3]),
}


@pytest.mark.parametrize("op", AXES_OF_OLD)
def test_definitions_before_opset_13_are_not_claimed(op: str) -> None:
    """They say in attributes, and by other defaults, what inputs say since."""
    node, shape = AXES_OF_OLD[op]
    made = graph([node], {"x": shape}, list(node.output), opset=11)
    assert not is_claimed(opened(made))
    assert "expected a version from" in plugin.get_refusal()


def test_a_function_of_the_model_is_not_taken_for_an_operator() -> None:
    negative = helper.make_function(
        "my", "Relu", ["x"], ["y"], [NODE("Neg", ["x"], ["y"])], [helper.make_opsetid("", 21)]
    )
    made = graph([NODE("Relu", ["x"], ["y"], domain="my")], {"x": [3]}, ["y"], functions=[negative])
    made.opset_import.append(helper.make_opsetid("my", 1))
    (found,) = opened(made).run(None, {"x": np.float32([-1, 0, 2])})
    np.testing.assert_array_equal(found, [1, 0, -2])
    assert "none of that name in the domain my" in plugin.get_refusal()


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize("noop", [0, 1])
def test_reductions_without_axes(op: str, axes: list[int] | None, noop: int) -> None:
    given = [numbers(2, 3)] + ([] if axes is None else [np.array(axes, np.int64)])
    made = model(op, given, fixed=[1], noop_with_empty_axes=noop)
    same_results(made, {"x0": given[0]})


def empty(op: str, *inputs: np.ndarray, outputs: int = 1, fixed: list[int] | None = None, **attributes: Any) -> Any:
    return op, inputs, outputs, fixed or [], attributes


EMPTY = [
    empty("Add", numbers(0, 3), numbers(0, 1)),
    empty("Gemm", numbers(2, 0), numbers(3, 0), numbers(3), transB=1),
    empty("MatMul", numbers(2, 0), numbers(0, 3)),
    empty("ReduceMax", numbers(0, 3), np.array([0]), fixed=[1]),
    empty("ReduceMean", numbers(0, 3), np.array([0]), fixed=[1]),
    empty("ReduceSum", numbers(0, 3), np.array([0]), fixed=[1]),
    empty("Softmax", numbers(3, 0)),
    empty("TopK", numbers(0, 3), np.array([2]), outputs=2, fixed=[1]),
]


@pytest.mark.parametrize("case", EMPTY, ids=[case[0] for case in EMPTY])
def test_a_batch_of_nothing(case: Any) -> None:
    """The dimensions of size 0 are symbolic, so that the graph is claimed before they are known."""
    op, inputs, outputs, fixed, attributes = case
    nodes = [NODE(op, [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(outputs)], **attributes)]
    shapes = {f"x{i}": [size or f"n{i}" for size in x.shape] for i, x in enumerate(inputs) if i not in fixed}
    made = graph(nodes, shapes, list(nodes[0].output), {f"x{i}": inputs[i] for i in fixed})
    assert is_claimed(opened(made))
    same_results(made.SerializeToString(), {name: inputs[int(name[1:])] for name in shapes})


@pytest.mark.parametrize("shape", [(3,), (1,), (), (4, 3), (2, 1, 3), (4, 1), (1, 1, 1, 3), (1, 2, 4, 1)])
def test_weights_of_a_norm_that_are_broadcast(shape: tuple[int, ...]) -> None:
    x, weight = numbers(2, 4, 3), numbers(*shape)
    inputs: dict[str, list[Any] | None] = {"x": ["a", "b", "c"], "weight": None, "bias": None}
    made = graph([NODE("LayerNormalization", list(inputs), ["y"])], inputs, ["y"])
    (found,) = opened(made).run(None, {"x": x, "weight": weight, "bias": weight[..., ::-1] if shape else weight})
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-5) * weight + (weight[..., ::-1] if shape else weight)
    np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=1e-5, atol=1e-5)
    assert is_claimed(opened(made))


def test_no_negative_zero_of_abs() -> None:
    x = np.float32([-0.0, 0, -1, np.nan] * 20)
    (found,) = on_provider(model("Abs", [x]), {"x0": x})
    assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("count, k", [(5, 1), (5, 5), (40, 8), (300, 3), (1000, 16)])
def test_top_k_of_nan(count: int, k: int) -> None:
    x = numbers(6, count)
    x[np.random.default_rng(2).random(x.shape) < 0.2] = np.nan
    same_results(model("TopK", [x, np.array([k])], outputs=2, fixed=[1]), {"x0": x})


def test_a_split_with_an_output_left_out_reads_no_other_memory() -> None:
    """Its sizes, [1000, -996], sum to that of x, whose shape is not known when the model is loaded."""
    nodes = [NODE("Reshape", ["given", "shape"], ["x"]), NODE("Split", ["x", "sizes"], ["y", ""], axis=1)]
    fixed = {"shape": np.array([0, -1]), "sizes": np.array([1000, -996])}
    made = graph(nodes, {"given": ["rows", "columns"]}, ["y"], fixed)
    with pytest.raises(Exception, match="Split"):
        opened(made).run(None, {"given": numbers(2, 4)})


@pytest.mark.parametrize(
    "node, fixed",
    [
        (NODE("Transpose", ["x"], ["y"], perm=[1, 1]), {}),
        (NODE("Unsqueeze", ["x", "axes"], ["y"]), {"axes": np.array([0, 0])}),
        (NODE("Slice", ["x", "from", "to", "axes"], ["y"]), dict.fromkeys(("from", "to", "axes"), np.array([1, 1]))),
        (NODE("Split", ["x", "sizes"], ["y", "z"]), {"sizes": np.array([2**63 - 1, 3 - 2**63])}),
        (NODE("Pad", ["x", "pads"], ["y"]), {"pads": np.array([2**62, 0, 2**62, 0])}),
        (NODE("Reshape", ["x", "to"], ["y"]), {"to": np.array([2**32, 2**32, 0])}),
    ],
    ids=lambda given: given.op_type if isinstance(given, NodeProto) else "",
)  # fmt: skip
def test_axes_and_sizes_that_there_are_not(node: NodeProto, fixed: dict[str, np.ndarray]) -> None:
    """The rank of x is not in the model, so that nothing before the provider sees them."""
    made = graph([node], {"x": None}, list(node.output), fixed)
    with pytest.raises(Exception, match=node.op_type):
        opened(made).run(None, {"x": numbers(2, 2)})


def test_a_norm_whose_epsilon_has_more_axes_than_its_input() -> None:
    """The result has as many axes as epsilon. (ONNX Runtime's own fusion drops them.)"""
    nodes = [
        NODE("Pow", ["x", "two"], ["squares"]),
        NODE("ReduceMean", ["squares", "last"], ["mean"]),
        NODE("Add", ["mean", "epsilon"], ["sum"]),
        NODE("Sqrt", ["sum"], ["root"]),
        NODE("Div", ["x", "root"], ["quotient"]),
        NODE("Mul", ["quotient", "weight"], ["y"]),
    ]
    fixed = {"two": np.float32(2), "last": np.array([-1]), "epsilon": np.full((1, 1, 1, 1), 1e-5, np.float32)}
    given = {"x": numbers(2, 5), "weight": numbers(5)}
    (found,) = on_provider(several(nodes, given, fixed), given)
    root = np.sqrt(np.mean(given["x"] ** 2, -1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, (given["x"] / root * given["weight"])[None, None], rtol=1e-5)

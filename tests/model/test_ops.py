"""The two sets of operators are one: the same methods, and the graph that one records computes what the other does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from torch import Tensor, nn

from small import FFN, WIDTH, B
from t2r_export.config.targets import IR_VERSION, OPSET
from t2r_export.graph.recorder import GraphOps, Value, value_info
from t2r_export.graph.weights import array
from t2r_export.model.ops import TORCH, TorchOps

RECORDING = {"emit", "emit_many", "constant", "rename", "prune"}  # how a graph is written, not what it computes

Build = Callable[[TorchOps, nn.Module, list[Any]], Any]


class Weights(nn.Module):
    """Something for operators to take parameters from."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {"table": (9, WIDTH), "weight": (FFN, WIDTH), "bias": (FFN,), "scale": (WIDTH,)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.shift = nn.Parameter(torch.randn(WIDTH, generator=generator))
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in {"a": 3, "b": 4, "c": 5}.items()})
        self.bare = nn.ModuleDict({name: nn.Linear(WIDTH, size, bias=False) for name, size in {"a": 3, "b": 4}.items()})


WEIGHTS = Weights()


def run(build: Build, inputs: Sequence[Tensor], letter: bool = True) -> list[tuple[Value, np.ndarray]]:
    """Record `build` over graph inputs of the tensors' forms, run it in ONNX Runtime on the tensors."""
    batch: int | str = "B" if letter else len(inputs[0])
    ops = GraphOps(WEIGHTS, batch)
    values = [Value(f"in{i}", str(x.dtype).removeprefix("torch."), (batch, *x.shape[1:])) for i, x in enumerate(inputs)]
    result = build(ops, WEIGHTS, list(values))
    outputs = result if isinstance(result, list) else [result]
    graph = helper.make_graph(
        ops.nodes,
        "test",
        [value_info(v) for v in values],
        [value_info(v) for v in outputs],
        [
            *ops.constants.values(),
            *(onnx.numpy_helper.from_array(array(w), n) for n, w in ops.weights.items()),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run([v.name for v in outputs], {v.name: x.numpy() for v, x in zip(values, inputs, strict=True)})
    return list(zip(outputs, got, strict=True))


@torch.no_grad()
def compare(build: Build, *inputs: Tensor) -> None:
    """Values, dtypes and the shapes that the recorder wrote down, with a free batch and with a fixed one."""
    expected = build(TORCH, WEIGHTS, list(inputs))
    expected = expected if isinstance(expected, list) else [expected]
    for letter in (True, False):
        received = run(build, inputs, letter)
        for wanted, (value, got) in zip(expected, received, strict=True):
            assert str(wanted.dtype) == f"torch.{value.dtype}" == f"torch.{got.dtype}"
            assert (
                tuple(got.shape) == tuple(wanted.shape) == tuple(len(inputs[0]) if d == "B" else d for d in value.shape)
            )
            np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-5, atol=2e-6)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


IDS = torch.tensor([3, 8])
PLACES = torch.tensor([0, 70], dtype=torch.int32)
X = floats(B, WIDTH)
Y = floats(B, 3, 5, 4)
Z = floats(B, 3, 4, 6, seed=1)
# q, k, v, S and z of 6 query heads, 3 groups, K = 5, V = 4
TOKEN = [floats(B, 30), floats(B, 3, 1, 5, seed=1), floats(B, 12, seed=2), floats(B, 3, 5, 4), floats(B, 3, 5, seed=3)]
GATE, BETA = -floats(B, 3, 1, 1, seed=4).abs(), floats(B, 3, 1, 1, seed=5).sigmoid()

# operator -> how it is used, and on what
CASES: dict[str, tuple[Build, list[Tensor]]] = {
    "parameter": (lambda ops, w, x: ops.add(x[0], ops.parameter(w.shift)), [X]),
    "embedding": (lambda ops, w, x: ops.embedding(x[0], w.table), [IDS]),
    "linear": (lambda ops, w, x: ops.linear(x[0], w.weight, w.bias), [X]),
    "linear_no_bias": (lambda ops, w, x: ops.linear(x[0], w.weight, None), [X]),
    "linears": (
        lambda ops, w, x: ops.linears(x[0], [[w.layers["a"], w.layers["b"]], [w.layers["c"]]]),
        [X],
    ),
    "linears_no_bias": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"]], [w.bare["b"]]]), [X]),
    "linears_one_group": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"], w.bare["b"]]]), [X]),
    "accumulate": (lambda ops, w, x: ops.accumulate(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "rows": (lambda ops, w, x: ops.rows(x[0]), [X]),
    "positions": (lambda ops, w, x: list(ops.positions(*x)), [PLACES, IDS]),
    "by_head": (lambda ops, w, x: ops.by_head(x[0], 3, 5, x[1]), [TOKEN[0], Y]),
    "by_row": (lambda ops, w, x: ops.by_row(x[0], 5), [Y]),
    "unseen": (lambda ops, w, x: ops.unseen(x[0], x[1]), [Y, floats(B, 3, 4, 4)]),
    "unseen_window": (lambda ops, w, x: ops.unseen(x[0], x[1], 3), [Y, floats(B, 3, 4, 4)]),
    "newest": (lambda ops, w, x: ops.newest(x[0], 2), [Y]),
    "oldest": (lambda ops, w, x: ops.oldest(x[0], 2), [Y]),
    "places": (lambda ops, w, x: ops.places(x[0]), [Y]),
    "last": (lambda ops, w, x: ops.last(*x), [X, IDS]),
    "sequences": (lambda ops, w, x: ops.sequences(x[0]), [X]),
    "layer_norm": (lambda ops, w, x: ops.layer_norm(x[0], w.scale, w.shift, 0.1), [X]),
    "rms_norm": (lambda ops, w, x: ops.rms_norm(x[0], w.scale, 0.1), [X]),
    "rms_norm_unscaled": (lambda ops, w, x: ops.rms_norm(x[0], None, 0.1), [Y]),
    "add": (lambda ops, w, x: ops.add(*x), [Y, floats(B, 1, 5, 1, seed=2)]),
    "add_number": (lambda ops, w, x: ops.add(x[0], 1), [PLACES]),
    "sub": (lambda ops, w, x: ops.sub(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "mul": (lambda ops, w, x: ops.mul(*x), [Y, floats(B, 3, 1, 4, seed=2)]),
    "mul_number": (lambda ops, w, x: ops.mul(x[0], 0.3), [Y]),
    "div": (lambda ops, w, x: ops.div(*x), [Y, 1 + floats(B, 3, 5, 1, seed=2).abs()]),
    "maximum": (lambda ops, w, x: ops.maximum(x[0], 0.25), [Y]),
    "minimum": (lambda ops, w, x: ops.minimum(x[0], 0.25), [Y]),
    "minimum_whole": (lambda ops, w, x: ops.minimum(x[0], 39), [PLACES]),
    "matmul": (lambda ops, w, x: ops.matmul(*x), [Y, Z]),
    "matmul_broadcast": (lambda ops, w, x: ops.matmul(*x), [Y, floats(B, 1, 4, 7)]),
    "relu": (lambda ops, w, x: ops.relu(x[0]), [Y]),
    "elu": (lambda ops, w, x: ops.elu(x[0]), [Y]),
    "exp": (lambda ops, w, x: ops.exp(x[0]), [Y]),
    "mean": (lambda ops, w, x: ops.mean(x[0]), [Y]),
    "largest": (lambda ops, w, x: ops.largest(x[0]), [Y]),
    "silu": (lambda ops, w, x: ops.silu(x[0]), [Y]),
    "sigmoid": (lambda ops, w, x: ops.sigmoid(x[0]), [Y]),
    "tanh": (lambda ops, w, x: ops.tanh(x[0]), [Y]),
    "gelu": (lambda ops, w, x: ops.gelu(x[0], tanh=False), [Y]),
    "gelu_tanh": (lambda ops, w, x: ops.gelu(x[0], tanh=True), [Y]),
    "sin": (lambda ops, w, x: ops.sin(x[0]), [Y]),
    "cos": (lambda ops, w, x: ops.cos(x[0]), [Y]),
    "softmax": (lambda ops, w, x: ops.softmax(x[0]), [Y]),
    "top_k": (lambda ops, w, x: list(ops.top_k(x[0], 2)), [Y]),
    "take_along": (lambda ops, w, x: ops.take_along(*x), [Y, torch.randint(0, 4, (B, 3, 5, 7))]),
    "cast_int64": (lambda ops, w, x: ops.cast(x[0], "int64"), [PLACES]),
    "cast_int32": (lambda ops, w, x: ops.cast(x[0], "int32"), [IDS]),
    "cast_float32": (lambda ops, w, x: ops.cast(x[0], "float32"), [PLACES]),
    "reshape": (lambda ops, w, x: ops.reshape(x[0], (-1, 5, 12)), [Y]),
    "unsqueeze": (lambda ops, w, x: ops.unsqueeze(x[0], 1), [Y]),
    "unsqueeze_last": (lambda ops, w, x: ops.unsqueeze(x[0], -1), [PLACES]),
    "squeeze": (lambda ops, w, x: ops.squeeze(x[0], 1), [floats(B, 1, 4)]),
    "squeeze_last": (lambda ops, w, x: ops.squeeze(x[0], -1), [floats(B, 4, 1)]),
    "digits": (lambda ops, w, x: ops.digits(x[0], 256, 4), [torch.tensor([2**31 - 1, 70_000], dtype=torch.int32)]),
    "transpose": (lambda ops, w, x: ops.transpose(x[0], (0, 3, 1, 2)), [Y]),
    "split": (lambda ops, w, x: ops.split(x[0], [1, 2, 7]), [X]),
    "split_axis": (lambda ops, w, x: ops.split(x[0], [3, 2], axis=2), [Y]),
    "concat": (lambda ops, w, x: ops.concat(x), [Y, floats(B, 3, 5, 2)]),
    "log_sigmoid": (lambda ops, w, x: ops.log_sigmoid(x[0]), [torch.tensor([[-100.0, -9, -1], [0, 9, 100]])]),
    "linear_attention": (
        lambda ops, w, x: list(ops.linear_attention(*x)),
        TOKEN,
    ),
    **{
        f"linear_attention_{rule}": (
            lambda ops, w, x, given=given: list(ops.linear_attention(*x[:4], None, *(i and x[i] for i in given))[::2]),
            [*TOKEN[:4], GATE, BETA],
        )
        for rule, given in {"linear": (), "gated": (4,), "delta": (None, 5), "gated_delta": (4, 5)}.items()
    },
    "linear_attention_gated_z": (lambda ops, w, x: list(ops.linear_attention(*x)), [*TOKEN, GATE]),
    "concat_axis": (lambda ops, w, x: ops.concat(x, axis=1), [Y, floats(B, 2, 5, 4)]),
}


def public(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_the_same_methods() -> None:
    assert public(GraphOps) - public(TorchOps) == RECORDING
    assert set(vars(TorchOps)) & public(TorchOps) <= set(vars(GraphOps)), "one is inherited and would compute"


def test_the_same_arguments() -> None:
    for name in public(TorchOps):
        ours, theirs = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (TorchOps, GraphOps))
        assert ours == theirs, name


def test_every_operator_has_a_case() -> None:
    assert {name for name in public(TorchOps) if not any(case.startswith(name) for case in CASES)} == set()


@pytest.mark.parametrize("case", CASES)
def test_recorded_is_computed(case: str) -> None:
    build, inputs = CASES[case]
    compare(build, *inputs)


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
    compare(BINARY[op], floats(B, *left), floats(B, *right, seed=1))


@settings(max_examples=15)
@given(st.lists(dims, min_size=1, max_size=3), st.integers(1, 3), st.booleans())
def test_split_and_concat_are_inverses(sizes: list[int], axis: int, last: bool) -> None:
    shape = [B, 2, 3, 4]
    shape[axis] = sum(sizes)
    at = axis - 4 if last else axis
    compare(lambda ops, w, x: ops.concat(ops.split(x[0], sizes, axis=at), axis=at), floats(*shape))


@settings(max_examples=10)
@given(st.permutations([1, 2, 3]), st.integers(-5, 4))
def test_transpose_and_unsqueeze(axes: list[int], place: int) -> None:
    compare(lambda ops, w, x: ops.transpose(x[0], [0, *axes]), Y)
    if place not in (0, -5):  # in front of the batch the recorder's letter would stand elsewhere
        compare(lambda ops, w, x: ops.unsqueeze(x[0], place), Y)


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


def test_what_cannot_be_is_refused() -> None:
    ops = GraphOps(WEIGHTS, "B")
    x, y = Value("x", "float32", ("B", 3, 4)), Value("y", "float32", ("B", 5, 4))
    for wrong in (lambda: ops.add(x, y), lambda: ops.matmul(x, y), lambda: ops.linear(x, WEIGHTS.weight, None)):
        with pytest.raises(AssertionError):
            wrong()

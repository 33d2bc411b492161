"""How random_graphs.py draws a node of each operator: shapes, axes, omitted inputs, attributes of any value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawn import Drawn
from onnx import TensorProto, helper
from random_shapes import (
    concat,
    cut,
    expand,
    gather,
    gather_elements,
    pad,
    ranged,
    reshape,
    shape,
    split,
    squeeze,
    transpose,
    unsqueeze,
)
from test_operators import UNARY

Draw = Callable[[Drawn, str], None]


def unary(d: Drawn, op: str) -> None:
    d.node(op, [d.any_kind() if d.has_luck(0.05) else d.some_floats()])


def neg(d: Drawn, op: str) -> None:
    d.node(op, [d.any_kind()])


def binary(d: Drawn, op: str) -> None:
    if op == "Mod" or d.has_luck(0.25):
        kind = d.chance.choice([np.int64, np.int32])
        a, low = d.integers(d.shape(), -9, 10, kind), 1 if op in ("Div", "Mod") else -9
        b = d.integers(d.like(d.of(a).shape), low, 10, kind)
        attributes = {"fmod": d.chance.choice([0, 1])} if op == "Mod" and d.has_luck(0.3) else {}
        return d.node(op, [a, b], **attributes)
    a = d.some_floats()
    both = [a, d.floats(d.like(d.of(a).shape))]
    if op in ("Max", "Min") and d.has_luck(0.2):
        both = [*both, a] if d.has_luck(0.5) else [a]
    elif d.has_luck(0.5):
        both.reverse()
    d.node(op, both)


def cast(d: Drawn, op: str) -> None:
    kinds = (
        TensorProto.FLOAT,
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.BOOL,
        TensorProto.INT8,
        TensorProto.DOUBLE,
    )
    x = d.any_kind()
    # numbers beyond an integer type, and NaN, convert to whatever the processor gives
    allowed = kinds if d.of(x).dtype != np.float32 or np.abs(d.of(x)).max(initial=0) < 99 else (TensorProto.FLOAT,)
    d.node(op, [x], to=d.chance.choice(allowed), saturate=d.chance.choice([None, 0, 1]) if d.opset >= 19 else None)


def cum_sum(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    axis = np.array(d.axis(d.of(x).ndim)).reshape(d.chance.choice([(), (1,)]))
    d.node(
        op, [x, d.add(axis, 0.95)], exclusive=d.chance.choice([None, 0, 1]), reverse=d.chance.choice([None, None, 0, 1])
    )


def dequantize(d: Drawn, op: str) -> None:
    shape = d.shape(1)
    kind = d.chance.choice([np.uint8, np.int8])
    axis = d.axis(len(shape))
    is_row = -len(shape) <= axis < len(shape) and d.has_luck(0.7)
    of = (shape[axis],) if is_row else ((1,) if d.has_luck(0.2) else ())
    x = d.integers(shape, 0, 127, kind)
    zero = [d.integers(of, 0, 9, kind)] if d.has_luck(0.5) else []
    d.node(op, [x, d.floats(of), *zero], axis=axis if is_row or d.has_luck(0.3) else None)


def elu(d: Drawn, op: str) -> None:
    d.node(op, [d.some_floats()], alpha=d.chance.choice([None, 0.0, -1.5, 0.5]))


def gelu(d: Drawn, op: str) -> None:
    d.opset = max(d.opset, 20)
    d.node(op, [d.some_floats()], approximate=d.chance.choice([None, "none", "tanh"]))


def gemm(d: Drawn, op: str) -> None:
    rows, inner, columns = d.shape(3, 3)
    trans_a, trans_b = d.chance.choice([None, None, 0, 1]), d.chance.choice([None, 0, 1, 1])
    more = [d.floats(d.like((rows, columns)))] if d.has_luck(0.7) else []
    a = d.floats((inner, rows) if trans_a else (rows, inner))
    b = d.floats((columns, inner) if trans_b else (inner, columns))
    factors = {name: d.chance.choice([None, None, None, 1.0, 0.5, 0.0]) for name in ("alpha", "beta")}
    d.node(op, [a, b, *more], transA=trans_a, transB=trans_b, **factors)


def layer_norm(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    shape = d.of(x).shape
    axis = d.axis(len(shape))
    dims = shape[axis:] if -len(shape) <= axis < len(shape) else shape
    dims = d.like(dims) if d.has_luck(0.15) else dims
    bias = [d.floats(dims)] if d.has_luck(0.5) else []
    epsilon = d.chance.choice([None, 0.1, 1e-3])
    outputs = d.chance.choice([1, 1, 1, 3])
    d.node(op, [x, d.floats(dims), *bias], outputs, axis=None if axis == -1 else axis, epsilon=epsilon)


def matmul(d: Drawn, op: str) -> None:
    outer = d.shape(0, 2)
    rows, inner, columns = d.shape(3, 3)
    a, b = (*d.like(outer), rows, inner), (*d.like(outer), inner, columns)
    if d.has_luck(0.1):
        a = a[-1:]
    if d.has_luck(0.1):
        b = (inner,)
    d.node(op, [d.floats(a), d.floats(b)])


def quantized_matmul(d: Drawn, op: str) -> None:
    """Of exact levels: level 4 rounds x differently."""
    bits, block = d.chance.choice([4, 8]), d.chance.choice([16, 32, 64])
    n, k = d.chance.choice([1, 5, 33]), d.chance.choice([1, 16, 70, 128])
    blocks = -(-k // block)
    inputs = [
        d.floats((*d.shape(1, 2), k)),
        d.integers((n, blocks, block * bits // 8), 0, 256, np.uint8, 1),
        d.add(d.numbers.standard_normal((n, blocks)).astype(np.float32), 1),
        d.integers((n, -(-blocks * bits // 8)), 0, 256, np.uint8, 1) if d.has_luck(0.5) else "",
    ]
    if d.has_luck(0.3):
        inputs += ["", d.floats((n,))]
    while not inputs[-1]:
        inputs.pop()
    level = d.chance.choice([None, 0, 1])
    d.node(op, inputs, domain="com.microsoft", K=k, N=n, bits=bits, block_size=block, accuracy_level=level)


def reduction(d: Drawn, op: str) -> None:
    x = d.some_floats()
    if op == "ReduceMax" and np.isnan(d.of(x)).any():  # which ONNX Runtime gives or drops, by their place
        x = d.add(np.where(np.isnan(d.of(x)), np.float32(1), d.of(x)))
    rank = d.of(x).ndim
    axes = None if d.has_luck(0.15) else [d.axis(rank) for _ in range(d.chance.randint(0, min(rank, 3)))]
    if axes and d.has_luck(0.5):
        begin = d.chance.randrange(rank)
        axes = list(range(begin, d.chance.randint(begin + 1, rank)))
    keep = d.chance.choice([None, 0, 1])
    if op == "ReduceSum" or d.opset >= 18:
        more = [] if axes is None else [d.listed(axes)]
        return d.node(op, [x, *more], keepdims=keep, noop_with_empty_axes=d.chance.choice([None, 0, 1]))
    d.node(op, [x], keepdims=keep, axes=axes or None)


def scan(d: Drawn, op: str) -> None:
    state = [size or 2 for size in d.shape(1, 3)]  # a dimension of 0 ends ONNX Runtime's process
    axis = d.chance.randint(0, len(state))
    pieces = d.chance.choice([1, 2, 5])
    rows = d.chance.randint(axis, len(state))
    is_product = len(state) == axis + 2 and d.has_luck(0.5)
    factor = [*state[:-1], state[-2]] if is_product else [size if at < rows else 1 for at, size in enumerate(state)]
    factors = ["k", "s"] if is_product else d.chance.choice([["s", "k"], ["k", "s"]])
    more, kept = list(state), factor
    more.insert(axis, pieces)
    kept.insert(axis, pieces)
    value = helper.make_empty_tensor_value_info
    copied = d.chance.choice(["s", "next"])
    body = helper.make_graph(
        [
            helper.make_node("MatMul" if is_product else "Mul", factors, ["product"]),
            helper.make_node("Add", d.chance.choice([["product", "m"], ["m", "product"]]), ["next"]),
            helper.make_node("Identity", [copied], ["each"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "skm"],
        [value("next"), value("each")],
    )
    axes = {f"scan_{side}_axes": [axis] * count for side, count in (("input", 2), ("output", 1))} if axis else {}
    back = [d.chance.choice([0, 1])] if d.has_luck(0.1) else None
    inputs = [d.floats(state), d.floats(kept), d.floats(more)]
    d.node(op, inputs, 2, body=body, num_scan_inputs=2, scan_output_directions=back, **axes)


def softmax(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    d.node(op, [x], axis=d.chance.choice([None, -1, d.of(x).ndim - 1, d.axis(d.of(x).ndim)]))


def top_k(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    axis = d.chance.choice([None, -1, -1, d.axis(d.of(x).ndim)])
    flags = {name: d.chance.choice([None, None, 1, 0]) for name in ("largest", "sorted")}
    k = d.chance.randint(0, d.of(x).shape[-1])
    if flags["sorted"] == 0:
        flags["sorted"] = None if k else 0  # of no order that is defined
    d.node(op, [x, d.listed([k])], 2, axis=axis, **flags)


OPERATORS: dict[str, Draw] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mod", "Mul", "Pow", "Sub"), binary),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), binary),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum"), reduction),
    "Cast": cast,
    "Concat": concat,
    "CumSum": cum_sum,
    "DequantizeLinear": dequantize,
    "Elu": elu,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Gelu": gelu,
    "Gemm": gemm,
    "Identity": neg,
    "LayerNormalization": layer_norm,
    "MatMul": matmul,
    "MatMulNBits": quantized_matmul,
    "Neg": neg,
    "Pad": pad,
    "Range": ranged,
    "Reshape": reshape,
    "Scan": scan,
    "Shape": shape,
    "Slice": cut,
    "Softmax": softmax,
    "Split": split,
    "Squeeze": squeeze,
    "TopK": top_k,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}

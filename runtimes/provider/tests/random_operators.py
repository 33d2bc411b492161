"""How random_graphs.py draws a node of each operator: shapes, axes, omitted inputs, attributes of any value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawn import Drawn
from onnx import TensorProto, helper
from test_operators import UNARY

Draw = Callable[[Drawn, str], None]
SMALL = (0, 1, 2, 3)


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


def concat(d: Drawn, op: str) -> None:
    first = d.any_kind(1)
    shape = d.of(first).shape
    axis = d.axis(len(shape))
    parts = [first]
    for _ in range(d.chance.randrange(4)):
        dims = list(shape)
        if -len(dims) <= axis < len(dims):
            dims[axis] = d.chance.choice(SMALL)
        is_float = d.of(first).dtype == np.float32
        parts.append(d.floats(dims) if is_float else d.integers(dims, 0, 2, d.of(first).dtype.type))
    d.node(op, parts, axis=axis)


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


def expand(d: Drawn, op: str) -> None:
    x = d.any_kind()
    d.node(op, [x, d.listed(d.chance.choice([d.like(d.of(x).shape), (*d.shape(0, 1), *d.of(x).shape), d.shape()]))])


def gather(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    axis = d.axis(d.of(x).ndim)
    size = d.of(x).shape[axis] if -d.of(x).ndim <= axis < d.of(x).ndim else 1
    far = 1 if d.has_luck(0.02) else 0
    numbers = d.integers(d.shape(0, 2), -size, size + far, d.chance.choice([np.int64, np.int32]))
    d.node(op, [x, numbers], axis=axis if axis or d.has_luck(0.5) else None)


def gather_elements(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    shape = d.of(x).shape
    axis = d.axis(len(shape))
    dims = [d.chance.randint(0, size) if d.has_luck(0.3) else size for size in shape]
    size = 1
    if -len(shape) <= axis < len(shape):
        size, dims[axis] = shape[axis], d.chance.choice(SMALL)
    d.node(op, [x, d.integers(dims, -size, size, d.chance.choice([np.int64, np.int64, np.int32]))], axis=axis)


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
    """Of exact levels: level 4 rounds x in ways of its own."""
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


def pad(d: Drawn, op: str) -> None:
    x = d.some_floats()
    pads = [d.chance.choice([0, 0, 1, 2, -1 if d.has_luck(0.1) else 0]) for _ in range(2 * d.of(x).ndim)]
    value = [d.floats(d.chance.choice([(), (), (1,)]))] if d.has_luck(0.5) else []
    d.node(op, [x, d.listed(pads), *value], mode=d.chance.choice([None, "constant", "constant", "reflect"]))


def ranged(d: Drawn, op: str) -> None:
    kind = d.chance.choice([np.int64, np.int64, np.int32, np.float32])
    numbers = (d.chance.randint(-5, 5), d.chance.randint(-5, 9), d.chance.choice([-3, -1, 1, 1, 2]))
    d.node(op, [d.add(np.array(number, kind), 0.97) for number in numbers])


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


def reshape(d: Drawn, op: str) -> None:
    x = d.any_kind()
    left, to = d.of(x).size, []
    for _ in range(d.chance.randrange(4)):
        size = d.chance.choice([size for size in (1, 2, 3, 9, 70) if left % size == 0])
        to.append(size)
        left //= size
    to.append(left)
    d.chance.shuffle(to)
    if d.has_luck(0.5):
        to[d.chance.randrange(len(to))] = d.chance.choice([-1, -1, 0])
    d.node(op, [x, d.listed(to)], allowzero=d.chance.choice([None, None, 0, 1]) if d.opset >= 14 else None)


def scan(d: Drawn, op: str) -> None:
    state = [size or 2 for size in d.shape(1, 3)]  # a dimension of 0 ends ONNX Runtime's process
    axis = d.chance.randint(0, len(state))
    pieces = d.chance.choice([1, 2, 5])
    rows = d.chance.randint(axis, len(state))
    factor = [size if at < rows else 1 for at, size in enumerate(state)]
    more, kept = list(state), factor
    more.insert(axis, pieces)
    kept.insert(axis, pieces)
    value = helper.make_empty_tensor_value_info
    copied = d.chance.choice(["s", "next"])
    body = helper.make_graph(
        [
            helper.make_node("Mul", d.chance.choice([["s", "k"], ["k", "s"]]), ["product"]),
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


def shape(d: Drawn, op: str) -> None:
    ends = {name: d.odd(d.chance.randint(-4, 4)) if d.has_luck(0.5) else None for name in ("start", "end")}
    d.node(op, [d.any_kind()], **(ends if d.opset >= 15 else {}))


def cut(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    rank = d.of(x).ndim
    axes = d.chance.sample(range(rank), d.chance.randint(1, rank))
    axes = [axis - rank if d.has_luck(0.3) else axis for axis in axes]
    sizes = [d.of(x).shape[axis] for axis in axes]
    starts = [d.chance.randint(-size - 1, size + 1) for size in sizes]
    ends = [d.chance.choice([d.chance.randint(-size - 1, size + 1), 2**63 - 1, size]) for size in sizes]
    given = [d.listed(starts), d.listed(ends)]
    if d.has_luck(0.8):
        given.append(d.listed(axes))
    elif d.has_luck(0.3):
        given.append("")
    if len(given) == 3 and d.has_luck(0.3):
        given.append(d.listed([d.chance.choice([1, 1, 1, 2, -1]) for _ in starts]))
    d.node(op, [x, *given])


def softmax(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    d.node(op, [x], axis=d.chance.choice([None, -1, d.of(x).ndim - 1, d.axis(d.of(x).ndim)]))


def split(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    axis = d.axis(d.of(x).ndim)
    size = d.of(x).shape[axis] if -d.of(x).ndim <= axis < d.of(x).ndim else 3
    parts = d.chance.randint(1, 4)
    if d.has_luck(0.5):
        cuts = sorted(d.chance.randint(0, size) for _ in range(parts - 1))
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, size], strict=True)]
        return d.node(op, [x, d.listed(sizes)], parts, axis=axis)
    d.node(op, [x], parts, axis=axis, num_outputs=parts if d.opset >= 18 else None)


def squeeze(d: Drawn, op: str) -> None:
    x = d.any_kind()
    ones = [at for at, size in enumerate(d.of(x).shape) if size == 1]
    axes = [
        at - d.of(x).ndim if d.has_luck(0.3) else at for at in d.chance.sample(ones, d.chance.randint(0, len(ones)))
    ]
    d.node(op, [x, *([d.listed(axes)] if axes or d.has_luck(0.1) else [])])


def top_k(d: Drawn, op: str) -> None:
    x = d.some_floats(1)
    axis = d.chance.choice([None, -1, -1, d.axis(d.of(x).ndim)])
    flags = {name: d.chance.choice([None, None, 1, 0]) for name in ("largest", "sorted")}
    k = d.chance.randint(0, d.of(x).shape[-1])
    if flags["sorted"] == 0:
        flags["sorted"] = None if k else 0  # of no order that is defined
    d.node(op, [x, d.listed([k])], 2, axis=axis, **flags)


def transpose(d: Drawn, op: str) -> None:
    x = d.any_kind()
    order = d.chance.sample(range(d.of(x).ndim), d.of(x).ndim)
    d.node(op, [x], perm=[d.odd(axis) for axis in order] if order and d.has_luck(0.8) else None)


def unsqueeze(d: Drawn, op: str) -> None:
    x = d.any_kind()
    count = d.chance.randint(0, 2)
    rank = d.of(x).ndim + count
    axes = [at - rank if d.has_luck(0.3) else at for at in d.chance.sample(range(rank), count)]
    d.node(op, [x, d.listed(axes)])


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

"""Every operator against ONNX Runtime's, with each table of kernels that this processor supports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_node import compare, same_results, several
from onnx import GraphProto, TensorProto, helper

SOURCES = Path(__file__).parents[1] / "src"
KERNELS = ("avx512", "avxvnni", "avx2", "base")
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)

Check = Callable[[np.random.Generator, list[int]], None]


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def integers(
    random: np.random.Generator, *shape: int, kind: type = np.int64, low: int = -9, high: int = 9
) -> np.ndarray:
    return random.integers(low, high, shape).astype(kind)


def shape_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def unary(op: str) -> Check:
    def check(random: np.random.Generator, dims: list[int]) -> None:
        x = normal(random, *dims, 67) * 3
        if op in ("Log", "Sqrt"):
            x = np.abs(x) + np.float32(1e-3)
        compare(op, x)
        if op == "Round":
            compare(op, np.float32([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 8388607.5, np.inf, np.nan]]))
        if op in ("Exp", "Sigmoid", "Softplus", "Relu"):
            compare(op, np.float32([[-200, -88, -20, -0.0, 0, 20, 88, 200, np.inf, -np.inf]]))

    return check


def binary(op: str) -> Check:
    def check(random: np.random.Generator, dims: list[int]) -> None:
        a, b, c = dims
        for left, right in (
            ((a, b, c), (a, b, c)),
            ((a, 1, c), (b, 1)),
            ((b, c), (a, b, 1)),
            ((1,), (a, b, c)),
            ((), (c,)),
        ):
            x, y = normal(random, *left), normal(random, *right)
            if op == "Pow":
                x, y = np.abs(x) + np.float32(0.1), np.float32(2) if right == () else y
            if op == "Div":
                y = y + np.sign(y)
            compare(op, x, y)
        if op in ("Add", "Sub", "Mul", "Div"):
            for kind in (np.int32, np.int64):
                compare(op, integers(random, a, b, kind=kind), integers(random, b, kind=kind, low=1))

    return check


def comparison(op: str) -> Check:
    def check(random: np.random.Generator, dims: list[int]) -> None:
        a, b, c = dims
        for kind in (np.int32, np.int64, np.float32):
            x = integers(random, a, b, c, kind=kind, low=-2, high=2)
            compare(op, x, integers(random, b, 1, kind=kind, low=-2, high=2))
        compare(op, normal(random, a, c), np.float32([[np.nan]]))

    return check


def cast(random: np.random.Generator, dims: list[int]) -> None:
    for of, to in ((np.int64, 6), (np.int64, 1), (np.int32, 7), (np.int32, 1), (np.float32, 1)):
        compare("Cast", integers(random, *dims).astype(of), to=to)
    compare("Cast", integers(random, *dims, low=0, high=2).astype(bool), to=1)
    compare("Cast", integers(random, *dims, kind=np.int8, low=-128, high=128), to=1)
    compare("Cast", np.clip(40 * normal(random, *dims), -128, 127), to=3)


def gelu(random: np.random.Generator, dims: list[int]) -> None:
    for how in ("none", "tanh"):
        compare("Gelu", normal(random, *dims), approximate=how)


def concat(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    compare("Concat", normal(random, a, b, c), normal(random, a, 2, c), normal(random, a, b, c), axis=1)
    compare("Concat", integers(random, a, c), integers(random, a, b), axis=-1)


def expand(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    compare("Expand", normal(random, b, 1), shape_of(a, 1, c), fixed=[1])
    compare("Expand", normal(random, a, b), shape_of(a, b), fixed=[1])


def gather(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    for kind in (np.int64, np.int32):
        compare("Gather", normal(random, a, b, c), integers(random, c, 2, kind=kind, low=-a, high=a), axis=0)
    compare("Gather", integers(random, a, b, kind=np.uint8, low=0), integers(random, 1, low=0, high=a))
    for axis in (1, -1):
        compare("Gather", normal(random, a, b, b), integers(random, 2, c, low=-b, high=b), axis=axis)


def cum_sum(random: np.random.Generator, dims: list[int]) -> None:
    for axis in (-1, 0, 1):
        for exclusive in (0, 1):
            compare("CumSum", normal(random, *dims), np.int64(axis), fixed=[1], exclusive=exclusive)


def mod(random: np.random.Generator, dims: list[int]) -> None:
    a, b, _ = dims
    for kind in (np.int32, np.int64):
        compare("Mod", integers(random, a, b, 6, kind=kind), np.array([-7, -3, -1, 1, 4, 9], kind))


def neg(random: np.random.Generator, dims: list[int]) -> None:
    unary("Neg")(random, dims)
    for kind in (np.int32, np.int64):
        compare("Neg", integers(random, *dims, kind=kind))


def pad(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    x = normal(random, a, b, c)
    compare("Pad", x, shape_of(0, 0, 0, 0, 0, 0), fixed=[1])
    compare("Pad", x, shape_of(0, 1, 0, 2, 3, 0), np.float32(-0.5), fixed=[1])
    compare("Pad", x[:, :, 0], shape_of(0, 0, c, 0), fixed=[1])
    compare("Pad", x, shape_of(b, 0), np.float32(0), shape_of(-2), fixed=[1, 3])
    compare("Pad", x, shape_of(1, c, 2, 0), np.float32(2), shape_of(2, 0), fixed=[1, 3])


def recurrence(kind: str, factors: list[str], gives: str) -> GraphProto:
    nodes = [
        helper.make_node(kind, factors, ["left"]),
        helper.make_node("Add", ["left", "more"], ["after"]),
        helper.make_node("Identity", [gives], ["each"]),
    ]
    names = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in group.split()]
        for group in ("past kept more", "after each")
    ]
    return helper.make_graph(nodes, "body", *names)


def scan(random: np.random.Generator, dims: list[int]) -> None:
    """state = kept · state + more, along an axis after some, none and most of the state's; outputs old or new state.

    `kept` is numbers or a matrix for each matrix of the state.
    """
    a, b, c = dims
    for gives in ("past", "after"):
        factors = ["kept", "past"] if gives == "past" else ["past", "kept"]
        for state, axis in (((a, b, c, 67), 2), ((b, c), 0), ((a, c), 1)):
            whole = (*state[:axis], 3, *state[axis:])
            axes = {"num_scan_inputs": 2, "scan_input_axes": [axis, axis], "scan_output_axes": [axis]}
            given = normal(random, *state), normal(random, *whole)
            for ones in range(len(state) - axis + 1):  # trailing axes of size 1 of the factor
                kept = normal(random, *whole[: len(whole) - ones], *(1,) * ones)
                body = recurrence("Mul", factors, gives)
                compare("Scan", given[0], kept, given[1], outputs=2, body=body, **axes)
            if axis == 2:  # ONNX Runtime makes the body of a plain matrix a Gemm
                kept = normal(random, *whole[:-1], whole[-2])
                body = recurrence("MatMul", ["kept", "past"], gives)
                compare("Scan", given[0], kept, given[1], outputs=2, body=body, **axes)


def gather_elements(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    compare("GatherElements", normal(random, a, b, c), integers(random, a, 3, c, low=-b, high=b), axis=1)
    compare("GatherElements", integers(random, a, b), integers(random, a, c, low=0, high=b), axis=-1)


def elu(random: np.random.Generator, dims: list[int]) -> None:
    compare("Elu", normal(random, *dims), alpha=0.7)


def identity(random: np.random.Generator, dims: list[int]) -> None:
    compare("Identity", normal(random, *dims))


def reshape(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    for shape in ((c, a * b), (0, -1), (-1,), (a, b, c, 1)):
        compare("Reshape", normal(random, a, b, c), shape_of(*shape), fixed=[1])


def cut(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    x = normal(random, a, b + 2, c)
    one = shape_of(1)
    compare("Slice", x, one, shape_of(10**9), one, fixed=[1, 2, 3])
    compare("Slice", x, shape_of(0, -2), shape_of(a, -1), shape_of(0, 1), shape_of(1, 1), fixed=[1, 2, 3, 4])
    compare("Slice", x, shape_of(0), shape_of(1), fixed=[1, 2])


def split(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    compare("Split", normal(random, a, b + 3, c), shape_of(1, b, 2), fixed=[1], outputs=3, axis=1)
    compare("Split", normal(random, 1, b, 2 * c), outputs=2, axis=-1, num_outputs=2)


def squeeze(random: np.random.Generator, dims: list[int]) -> None:
    a, b, _ = dims
    compare("Squeeze", normal(random, a, 1, b, 1), shape_of(1, -1), fixed=[1])
    compare("Squeeze", normal(random, 1, a + 1, 1))


def unsqueeze(random: np.random.Generator, dims: list[int]) -> None:
    compare("Unsqueeze", normal(random, *dims), shape_of(0, -1), fixed=[1])


def transpose(random: np.random.Generator, dims: list[int]) -> None:
    for order in ([2, 0, 1], [0, 2, 1], [0, 1, 2]):
        compare("Transpose", normal(random, *dims), perm=order)
    compare("Transpose", normal(random, *dims))


def matmul(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    compare("MatMul", normal(random, a, b, 19), normal(random, 19, c))
    compare("MatMul", normal(random, 1, a, b, 7), normal(random, c, 1, 7, 3))
    compare("MatMul", normal(random, a, b), normal(random, b, 1))
    compare("MatMul", normal(random, 1, 130), normal(random, 130, 517))  # divided among threads
    # whole and partial tiles of rows and columns; long sums are in another order
    for inner, columns in ((19, 3 + c), (19, 40 + c), (300, 5)):
        compare("MatMul", normal(random, b, 9 + a, inner), normal(random, b, inner, columns), bound=1e-5)


def gemm(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    for bias in (normal(random, c), normal(random, a, 1), normal(random, a, c), None):
        compare("Gemm", normal(random, a, b), normal(random, b, c), bias)
        compare("Gemm", normal(random, a, b), normal(random, c, b), bias, transB=1)
    compare("Gemm", normal(random, 1, 130), normal(random, 517, 130), normal(random, 517), transB=1)
    for bias in (None, normal(random, 70), normal(random, 5 * b, 1), normal(random, 5 * b, 70)):
        compare("Gemm", normal(random, 5 * b, 301), normal(random, 70, 301), bias, bound=1e-5, transB=1)


def dequantize(random: np.random.Generator, dims: list[int]) -> None:
    a, b, c = dims
    for kind, low in ((np.uint8, 0), (np.int8, -9)):
        x = integers(random, a, b, c, kind=kind, low=low)
        compare("DequantizeLinear", x, np.float32(0.3), kind(2), axis=0)
        compare("DequantizeLinear", x, normal(random, b), integers(random, b, kind=kind, low=low), axis=1)
        compare("DequantizeLinear", x, normal(random, c), axis=-1)


def quantized_matmul(random: np.random.Generator, dims: list[int]) -> None:
    _, b, _ = dims
    for bits in (4, 8):
        for block in (16, 32, 64, 128, 256):
            for K in (block, 3 * block + 32, 5 * 32):
                N, blocks = 8 * b + 3, -(-K // block)
                # integers up to 127, so that scales are 1 and no rounding differs
                x = integers(random, b + 1, K, low=-126, high=127).astype(np.float32)
                x[:, :: min(block, 32)] = 127
                numbers = integers(random, N, blocks, block * bits // 8, kind=np.uint8, low=0, high=256)
                scales = np.abs(normal(random, N, blocks)) + np.float32(0.01)
                width = -(-blocks * bits // 8)
                zeros = integers(random, N, width, kind=np.uint8, low=0, high=256)
                bias = normal(random, N)
                for more in ((), (zeros,), (None, None, bias)):
                    # sums of up to 800 products in another order
                    compare(
                        *("MatMulNBits", x, numbers, scales, *more),
                        fixed=[1, 2, 3, 5], bound=2e-5, K=K, N=N, bits=bits, block_size=block, accuracy_level=4,
                    )  # fmt: skip
    for level, bits, block, K in ((0, 4, 16, 70), (1, 4, 128, 128), (1, 8, 64, 200)):
        N, blocks = 8 * b + 3, -(-K // block)
        x, scales = normal(random, b, K), normal(random, N, blocks)
        numbers = integers(random, N, blocks, block * bits // 8, kind=np.uint8, low=0, high=256)
        zeros = integers(random, N, -(-blocks * bits // 8), kind=np.uint8, low=0, high=256)
        for more in ((), (zeros,), (None, None, normal(random, N))):
            compare(
                *("MatMulNBits", x, numbers, scales, *more),
                fixed=[1, 2, 3, 5], bound=1e-5, K=K, N=N, bits=bits, block_size=block, accuracy_level=level,
            )  # fmt: skip


def reduction(op: str) -> Check:
    def check(random: np.random.Generator, dims: list[int]) -> None:
        compare(op, np.abs(normal(random, dims[0], 70)), shape_of(1), fixed=[1])
        x = np.abs(normal(random, *dims, 33))  # no cancellation
        for axes in (shape_of(-1), shape_of(1), shape_of(1, 2), shape_of(0, 1, 2, 3)):
            compare(op, x, axes, fixed=[1])
            compare(op, x, axes, fixed=[1], keepdims=0)
        compare(op, x)

    return check


def softmax(random: np.random.Generator, dims: list[int]) -> None:
    compare("Softmax", normal(random, *dims, 33) * 9)


def layer_norm(random: np.random.Generator, dims: list[int]) -> None:
    x = normal(random, *dims, 33)
    for bias in (normal(random, 33), None):
        compare("LayerNormalization", x, normal(random, 33), bias, epsilon=1e-3, bound=1e-5)


def top_k(random: np.random.Generator, dims: list[int]) -> None:
    x = integers(random, *dims, 33).astype(np.float32)  # some are equal
    for k in (1, 4, 33):
        compare("TopK", x, shape_of(k), fixed=[1], outputs=2)
    long = integers(random, 3, 1000, high=99).astype(np.float32)  # most numbers are skipped, block by block
    for k in (1, 5, 15, 16):
        compare("TopK", long, shape_of(k), fixed=[1], outputs=2)
        compare("TopK", normal(random, 3, 1000), shape_of(k), fixed=[1], outputs=2)
    long[0], long[1, 99:], long[2] = -np.inf, -np.inf, np.inf
    compare("TopK", long, shape_of(5), fixed=[1], outputs=2)


def shape(random: np.random.Generator, dims: list[int]) -> None:
    x = normal(random, *dims)
    compare("Shape", x)
    compare("Shape", x, start=-2)
    compare("Shape", x, start=1, end=-1)


def range_(random: np.random.Generator, dims: list[int]) -> None:
    """Range of a shape, which is known at planning time."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Cast", ["shape"], ["wide"], to=6),
        helper.make_node("Squeeze", ["wide"], ["end"]),
        helper.make_node("Range", ["first", "end", "step"], ["y"]),
    ]
    for first, step in ((0, 1), (-3, 2), (9, -1), (9, 1)):
        fixed = {"first": np.int32(first), "step": np.int32(step)}
        given = {"x": normal(random, *dims)}
        same_results(several(nodes, given, fixed, any_batch=True), given)


UNARY = (
    *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Round"),
    *("Reciprocal", "Relu", "Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh"),
)
CHECKS: dict[str, Check] = {
    **{op: unary(op) for op in UNARY},
    **{op: binary(op) for op in ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub")},
    **{op: reduction(op) for op in ("ReduceMax", "ReduceMean", "ReduceSum")},
    **{op: comparison(op) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
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
    "Identity": identity,
    "LayerNormalization": layer_norm,
    "MatMul": matmul,
    "MatMulNBits": quantized_matmul,
    "Mod": mod,
    "Neg": neg,
    "Pad": pad,
    "Range": range_,
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


def test_every_operator_has_a_check() -> None:
    tables = [file.read_text() for file in SOURCES.glob("*.cpp")]
    named = {name for text in tables for name in re.findall(r'\{"(\w+)", \{build_', text)}
    assert named == set(CHECKS)


@pytest.mark.parametrize("op", CHECKS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=seeds, dims=st.lists(sizes, min_size=3, max_size=3))
def test_operators_compute_what_onnx_runtime_does(op: str, seed: int, dims: list[int]) -> None:
    CHECKS[op](np.random.default_rng(seed), dims)


@pytest.mark.parametrize("kernels", KERNELS[1:])
def test_lesser_processors(kernels: str) -> None:
    """Run the tests above and test_fused.py in a separate process, since a process chooses its kernels once."""
    if os.environ.get("T2R_KERNELS"):
        pytest.skip("this is that process")
    files = [__file__, str(Path(__file__).with_name("test_fused.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", "compute_what or fused"]
    done = subprocess.run(command, env={**os.environ, "T2R_KERNELS": kernels}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]

"""Fused nodes compute what ONNX Runtime does, in one operation; nodes that do not fit stay separate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_node import Array, same_results, several
from onnx import NodeProto, helper

sizes = st.integers(2, 5)


def run(
    nodes: Sequence[NodeProto], given: Mapping[str, np.ndarray], fixed: Mapping[str, Array], bound: float = 2e-6
) -> int:
    """Compare both providers; return the number of operations in the plan."""
    same_results(several(nodes, given, fixed), given, bound)
    return plugin.get_operations()


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    domain = "com.microsoft" if op == "MatMulNBits" else ""
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attributes)


def norm(quotient: str = "quotient", last: str = "quotient weight") -> list[NodeProto]:
    return [
        node("Pow", "x two", "square"),
        node("ReduceMean", "square axis", "mean", keepdims=1),
        node("Add", "mean epsilon", "sum"),
        node("Sqrt", "sum", "root"),
        node("Div", "x root", quotient),
        node("Mul", last.replace("quotient", quotient), "y"),
    ]


NORM = {"two": np.float32(2), "axis": np.array([-1]), "epsilon": np.float32(1e-3)}
examples = settings(max_examples=6, deadline=None, derandomize=True)


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, size=st.integers(1, 40))
def test_norms(seed: int, a: int, b: int, size: int) -> None:
    random = np.random.default_rng(seed)
    x, weight = {"x": normal(random, a, b, size)}, normal(random, size)
    assert run(norm(), x, NORM | {"weight": weight}) == 1
    assert run(norm(last="weight quotient"), x, NORM | {"weight": weight.reshape(1, size)}) == 1
    assert run(norm(quotient="extra"), x, NORM | {"weight": weight}) == 6  # the quotient is an output
    assert run(norm(), x, NORM | {"weight": normal(random, b, 1)}) == 6
    assert run(norm(), x, NORM | {"weight": weight, "two": np.float32(4)}) == 6  # no cancellation
    assert run(norm(), x, NORM | {"weight": weight, "axis": np.array([1])}) == 6


def test_many_rows_are_divided_among_threads() -> None:
    random = np.random.default_rng(1)
    assert run(norm(), {"x": normal(random, 70, 301)}, NORM | {"weight": normal(random, 301)}) == 1


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, half=st.integers(1, 20))
def test_rotations(seed: int, a: int, b: int, half: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [
        node("Split", "x sizes", "left right", axis=3),
        node("Mul", "x same", "kept"),
        node("Concat", "right left", "turned", axis=3),
        node("Mul", "turned other", "more"),
        node("Add", "kept more", "y"),
    ]
    x, fixed = normal(random, a, b, 3, 2 * half), {"sizes": np.array([half, half])}
    for shape in ((1, 1, 1, 2 * half), (a, 1, 3, 2 * half), (3, 2 * half)):
        assert run(nodes, {"x": x, "same": normal(random, *shape), "other": normal(random, 2 * half)}, fixed) == 1
    narrow = {"x": x, "same": normal(random, a, b, 1, 1), "other": normal(random, 2 * half)}
    assert run(nodes, narrow, fixed) > 1
    unequal = {"x": normal(random, a, b, 3, 2 * half + 1), "same": normal(random, 1), "other": normal(random, 1)}
    assert run(nodes, unequal, {"sizes": np.array([half, half + 1])}) > 1


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, size=st.integers(1, 70))
def test_integers_with_a_scale_for_each_row(seed: int, a: int, b: int, size: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [node("Cast", "x", "wide", to=1), node("Mul", "wide scale", "y")]
    x = random.integers(-128, 128, (a, b, size)).astype(np.int8)
    assert run(nodes, {"x": x, "scale": normal(random, a, b, 1)}, {}) == 1
    assert run(nodes, {"x": x, "scale": normal(random, b, 1)}, {}) == 2


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, rows=st.integers(1, 9), columns=st.integers(2, 70))
def test_updates_of_a_state(seed: int, a: int, b: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    state, k, v = normal(random, a, b, rows, columns), normal(random, a, b, rows, 1), normal(random, a, b, 1, columns)
    for gate, expected in (((a, b, 1, 1), 1), ((a, b, rows, 1), 1), ((b, 1, 1), 3), ((a, b, rows, columns), 3)):
        for order in ("kept more", "more kept"):
            nodes = [node("Mul", "gate state", "kept"), node("MatMul", "k v", "more"), node("Add", order, "y")]
            assert run(nodes, {"state": state, "gate": normal(random, *gate), "k": k, "v": v}, {}) == expected
    wide = {"k": normal(random, a, b, rows, 2), "v": normal(random, a, b, 2, columns)}
    assert run(nodes, {"state": state, "gate": normal(random, a, b, 1, 1), **wide}, {}) == 3


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, rows=st.integers(1, 9), columns=st.integers(2, 70))
def test_updates_of_a_state_without_a_gate(seed: int, a: int, b: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    state, k, v = normal(random, a, b, rows, columns), normal(random, a, b, rows, 1), normal(random, a, b, 1, columns)
    for order in ("state more", "more state"):
        nodes = [node("MatMul", "k v", "more"), node("Add", order, "y")]
        assert run(nodes, {"state": state, "k": k, "v": v}, {}) == 1
        assert run(nodes, {"state": normal(random, columns), "k": k, "v": v}, {}) == 2
        wide = {"k": normal(random, a, b, rows, 2), "v": normal(random, a, b, 2, columns)}
        assert run(nodes, {"state": state, **wide}, {}) == 2


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, inner=st.integers(1, 70), columns=st.integers(1, 70))
def test_products_with_a_transposed_matrix(seed: int, a: int, b: int, inner: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [node("Transpose", "keys", "turned", perm=[0, 1, 3, 2]), node("MatMul", "q turned", "y")]
    keys = normal(random, a, b, columns, inner)
    for rows, expected in ((1, 1), (3, 1), (7, 1), (9, 2)):  # many rows are worth the transposition
        for outer in ((a, b), (a, 1), (b,), ()):
            given = {"q": normal(random, *outer, rows, inner), "keys": keys}
            assert run(nodes, given, {}, bound=1e-5) == expected
    given = {"q": normal(random, a, b, 3, inner), "keys": keys}
    asked = [node("Transpose", "keys", "extra", perm=[0, 1, 3, 2]), node("MatMul", "q extra", "y")]
    assert run(asked, given, {}, bound=1e-5) == 2
    other = [node("Transpose", "keys", "turned", perm=[0, 2, 3, 1]), node("MatMul", "q turned", "y")]
    assert run(other, {"q": normal(random, a, columns, 3, inner), "keys": keys}, {}, bound=1e-5) == 2


@examples
@given(seed=st.integers(0, 99), a=sizes, b=sizes, size=st.sampled_from([1, 7, 1024, 1025, 2500]))
def test_sums_of_powers(seed: int, a: int, b: int, size: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [
        node("ReduceMax", "x axis", "most", keepdims=1),
        node("Sub", "x most", "less"),
        node("Exp", "less", "powers"),
        node("ReduceSum", "powers axis", "y", keepdims=1),
    ]
    x, axis = normal(random, a, b, size), {"axis": np.array([-1])}
    assert run(nodes, {"x": x}, axis, bound=1e-5) == 2
    x[0, 0, size // 2], x[1, 1, 0] = np.nan, -np.inf
    assert run(nodes, {"x": x}, axis, bound=1e-5) == 2
    assert run(nodes[1:], {"x": x, "most": normal(random, 1, b, 1)}, axis, bound=1e-5) == 3
    assert run(nodes, {"x": x}, {"axis": np.array([1])}, bound=1e-5) == 4


@examples
@given(seed=st.integers(0, 99), a=sizes, rows=st.integers(2, 70))
def test_what_is_added_to_a_product(seed: int, a: int, rows: int) -> None:
    """A product is two operations: the quantization of its vectors, and the product."""
    random = np.random.default_rng(seed)
    numbers, scales = random.integers(0, 256, (rows, 2, 16)).astype(np.uint8), normal(random, rows, 2)
    nodes = [
        node("MatMulNBits", "x numbers scales", "product", K=64, N=rows, bits=4, block_size=32, accuracy_level=4),
        node("Add", "more product", "y"),
    ]
    fixed = {"numbers": numbers, "scales": scales}
    for shape, expected in (((rows,), 2), ((a, rows), 2), ((a, 1), 3), ((3, a, rows), 3)):
        given = {"x": normal(random, a, 64), "more": normal(random, *shape)}
        assert run(nodes, given, fixed, bound=1e-5) == expected
    nodes[0].output[0] = nodes[1].input[1] = "extra"
    assert run(nodes, {"x": normal(random, a, 64), "more": normal(random, rows)}, fixed, bound=1e-5) == 3


@examples
@given(
    seed=st.integers(0, 99),
    a=sizes,
    rows=st.integers(2, 40),
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([16, 32, 64, 128]),
)
def test_scales_in_float16(seed: int, a: int, rows: int, bits: int, block: int) -> None:
    """They are read as they are, without a conversion, also by two products; other readers have one."""
    random = np.random.default_rng(seed)
    scales = (normal(random, rows, 3) * 10.0 ** random.integers(-6, 1, (rows, 3))).astype(np.float16)
    numbers, others = random.integers(0, 256, (2, rows, 3, block * bits // 8)).astype(np.uint8)
    zeros = random.integers(0, 256, (rows, -(-3 * bits // 8))).astype(np.uint8)
    sizes = {"K": 3 * block, "N": rows, "bits": bits, "block_size": block}
    cast, given = node("Cast", "scales", "real", to=1), {"x": normal(random, a, 3 * block)}
    for level, zero_points, expected in ((4, "", 4), (4, " zeros", 4), (1, "", 2)):
        first = node("MatMulNBits", "x numbers real" + zero_points, "first", **sizes, accuracy_level=level)
        second = node("MatMulNBits", "x others real", "second", **sizes, accuracy_level=level)
        fixed = {"scales": scales, "numbers": numbers, "others": others, **({"zeros": zeros} if zero_points else {})}
        assert run([cast, first, second, node("Sub", "first second", "y")], given, fixed, bound=2e-5) == expected + 1
    del fixed["others"]
    extra = node("Abs", "real", "extra")
    assert (
        run([cast, first, extra, node("Neg", "first", "y")], given, fixed, bound=2e-5) == 3
    )  # the conversion is made once, when it opens


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf, -104.0, -88.0, 88.0])
def test_numbers_that_are_none(x: float) -> None:
    """Special values among ordinary ones, in vectorized loops."""
    values = np.linspace(-1, 1, 37, dtype=np.float32)
    values[5] = x
    for op in ("Exp", "Sigmoid"):
        assert run([node(op, "x", "y")], {"x": values}, {}) == 1


@examples
@given(seed=st.integers(0, 99), a=sizes, half=st.integers(1, 40))
def test_gated_halves(seed: int, a: int, half: int) -> None:
    random = np.random.default_rng(seed)
    nodes = [
        node("Split", "x sizes", "gate up", axis=1),
        node("Sigmoid", "gate", "share"),
        node("Mul", "gate share", "silu"),
        node("Mul", "silu up", "y"),
    ]
    x, equal = {"x": normal(random, a, 2 * half)}, {"sizes": np.array([half, half])}
    assert run(nodes, x, equal) == 1
    assert run([*nodes[:3], node("Mul", "up silu", "y")], x, equal) == 1
    assert run([*nodes[:3], node("Mul", "silu share", "y")], x, equal) == 5  # no second half
    first = [node("Split", "x sizes", "gate up", axis=0), *nodes[1:]]
    assert run(first, {"x": normal(random, 4, half)}, {"sizes": np.array([2, 2])}) == 3  # halves are views

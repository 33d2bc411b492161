"""Nodes that are almost what the provider fuses: it computes what they say, in separate operations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
from differential import compared
from one_node import Array, several
from onnx import ModelProto, NodeProto, helper
from test_fused import node

random = np.random.default_rng(4)
Arrays = Mapping[str, Array]


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def sizes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def written(line: str) -> NodeProto:
    """The node of a line "Op input input > output output attribute=1 list=0,1"."""
    left, _, right = line.partition(" > ")
    op, *inputs = left.split()
    names = [word for word in right.split() if "=" not in word]
    given = dict(word.split("=") for word in right.split() if "=" in word)
    integers = {name: [int(each) for each in value.split(",")] for name, value in given.items()}
    attributes = {name: value if "," in given[name] else value[0] for name, value in integers.items()}
    return node(op, " ".join(inputs), " ".join(names), **attributes)


# what is fused: its nodes, inputs and constants
NORM = """
    Pow x two > square
    ReduceMean square axis > mean
    Add mean epsilon > sum
    Sqrt sum > root
    Div x root > quotient
    Mul quotient weight > y
"""
ROTATION = """
    Split x sizes > left right axis=3
    Mul x same > kept
    Concat right left > turned axis=3
    Mul turned other > more
    Add kept more > y
"""
GATE = """
    Split x sizes > gate up axis=1
    Sigmoid gate > share
    Mul gate share > silu
    Mul silu up > y
"""
INTEGERS = """
    Cast x > wide to=1
    Mul wide scale > y
"""
ATTENTION = """
    Concat past_k k > present_k axis=2
    Concat past_v v > present_v axis=2
    Transpose present_k > turned perm=0,1,3,2
    MatMul q turned > s
    Mul s before > a
    Tanh a > b
    Mul b cap > c
    Softmax c > weights axis=-1
    MatMul weights present_v > y
"""
BYTES = """
    Concat past_k k > present_k axis=2
    Concat past_n n > present_n axis=2
    Concat past_v v > present_v axis=2
    Concat past_m m > present_m axis=2
    Cast present_k > wide_k to=1
    Mul wide_k present_n > rows_k
    Cast present_v > wide_v to=1
    Mul wide_v present_m > rows_v
    Transpose rows_k > turned perm=0,1,3,2
    MatMul q turned > s
    Softmax s > weights axis=-1
    MatMul weights rows_v > y
"""
CACHES = {"past_k": normal(2, 3, 5, 8), "k": normal(2, 3, 1, 8), "past_v": normal(2, 3, 5, 4), "v": normal(2, 3, 1, 4)}
NUMBERS = {name: (40 * x).clip(-127, 127).astype(np.int8) for name, x in CACHES.items()}
SCALES = {f"{past}{name}": normal(2, 3, 5 if past else 1, 1) for name in "nm" for past in ("past_", "")}
FUSED: dict[str, tuple[str, Arrays, Arrays]] = {
    "norm": (
        NORM,
        {"x": normal(3, 6), "weight": normal(6)},
        {"two": np.float32(2), "axis": sizes(-1), "epsilon": np.float32(1e-3)},
    ),
    "rotation": (ROTATION, {"x": normal(2, 3, 4, 6), "same": normal(4, 6), "other": normal(6)}, {"sizes": sizes(3, 3)}),
    "gate": (GATE, {"x": normal(3, 8)}, {"sizes": sizes(4, 4)}),
    "integers": (INTEGERS, {"x": np.arange(6, dtype=np.int8).reshape(2, 3), "scale": normal(2, 1)}, {}),
    "attention": (ATTENTION, {"q": normal(2, 3, 2, 8), **CACHES}, {"before": np.float32(0.5), "cap": np.float32(2)}),
    "bytes": (BYTES, {"q": normal(2, 3, 2, 8) / 40, **NUMBERS, **SCALES}, {}),
}
Z, KEYS = normal(2, 3, 4, 6), "Transpose keys > turned perm=0,1,3,2"
# what differs from one of those: lines by number, inputs, constants
ALMOST: dict[str, tuple[dict[int, str], Arrays, Arrays]] = {
    "norm of another value": ({0: "Pow z two > square"}, {"z": normal(3, 6)}, {}),
    "norm with more axes in its weight": ({}, {"weight": normal(1, 1, 6)}, {}),
    "norm with many exponents": ({}, {}, {"two": np.full(6, 2, np.float32)}),
    "rotation, halves in order": ({2: "Concat left right > turned axis=3"}, {}, {}),
    "rotation, three parts": (
        {0: "Split x sizes > left middle right axis=3", 2: "Concat right middle left > turned axis=3"},
        {},
        {"sizes": sizes(2, 2, 2)},
    ),
    "rotation, a part of nothing": (
        {0: "Split x sizes > left right nothing axis=3"},
        {},
        {"sizes": sizes(3, 3, 0)},
    ),
    "rotation, halves of two values": (
        {1: "Mul x same > kept\nSplit z sizes > first last axis=3", 2: "Concat right first > turned axis=3"},
        {"z": Z},
        {},
    ),
    "rotation of another value": ({1: "Mul z same > kept"}, {"z": Z}, {}),
    "rotation, two names of an axis": ({2: "Concat right left > turned axis=-1"}, {}, {}),
    "rotation along another axis": (
        {0: "Split x sizes > left right axis=2", 2: "Concat right left > turned axis=2"},
        {},
        {"sizes": sizes(2, 2)},
    ),
    "rotation, unequal parts": ({}, {}, {"sizes": sizes(2, 4)}),
    "rotation by one number": ({}, {"other": normal(1)}, {}),
    "rotation with more axes": ({}, {"same": normal(2, 1, 1, 4, 6)}, {}),
    "rotation with more axes in the other": ({}, {"other": normal(2, 1, 1, 4, 6)}, {}),
    "gate of another value": ({1: "Sigmoid z > share"}, {"z": normal(3, 4)}, {}),
    "gate that is read again": ({2: "Mul gate share > silu\nMul gate gate > extra"}, {}, {}),
    "gate from outside": ({3: "Mul silu z > y"}, {"z": normal(3, 4)}, {}),
    "gate of the second half": ({0: "Split x sizes > up gate axis=1"}, {}, {}),
    "gate of an odd size": ({}, {"x": normal(3, 3)}, {"sizes": sizes(1, 2)}),
    "gate of unequal parts": ({}, {"x": normal(3, 4)}, {"sizes": sizes(1, 3)}),
    "integers as other integers": ({0: "Cast x > wide to=6"}, {"x": sizes(1, 2), "scale": np.ones(2, np.int32)}, {}),
    "integers of another type": ({}, {"x": np.arange(6).reshape(2, 3)}, {}),
    "integers without an axis": ({}, {"x": np.array(7, np.int8), "scale": normal(1)}, {}),
    "attention, another node reads a cache": ({7: "Softmax c > weights axis=-1\nMul past_k cap > extra"}, {}, {}),
    "attention to keys that are no cache": ({2: KEYS}, {"keys": normal(2, 3, 6, 8)}, {}),
    "attention to keys that are computed": ({2: f"Abs present_k > keys\n{KEYS}"}, {}, {}),
    "attention, the axis by its number": ({7: "Softmax c > weights axis=3"}, {}, {}),
    "attention, no curve": ({5: "Abs a > b"}, {}, {}),
    "attention, another curve": ({4: "Add s before > a"}, {}, {}),
    "attention, an input as cap": ({6: "Mul b of > c"}, {"of": normal(1)}, {}),
    "attention, an input before the cap": ({4: "Mul s of > a"}, {"of": normal(1)}, {}),
    "attention, a cap of 0": ({}, {}, {"cap": np.float32(0)}),
    "attention, queries of all sequences": ({}, {"q": normal(1, 3, 2, 8)}, {}),
    "attention, queries of all heads": ({}, {"q": normal(2, 1, 2, 8)}, {}),
    "attention, queries without sequences": ({}, {"q": normal(3, 2, 8)}, {}),
    "bytes, another node reads a scale": ({10: "Softmax s > weights axis=-1\nAbs past_n > extra"}, {}, {}),
    "bytes, a scale for each number": ({}, {"past_n": normal(2, 3, 5, 8), "n": normal(2, 3, 1, 8)}, {}),
    "bytes and values of float32": (
        {3: "Abs q > extra", 6: "Abs q > more", 7: "Abs q > others", 11: "MatMul weights present_v > y"},
        {"past_v": CACHES["past_v"], "v": CACHES["v"]},
        {},
    ),
    "attention, caches of two lengths": ({}, {"past_v": normal(2, 3, 4, 4), "v": normal(2, 3, 2, 4)}, {}),
}


@pytest.mark.parametrize("name", ALMOST)
def test_nodes_that_do_not_fit(name: str) -> None:
    nodes, given, fixed = FUSED[name.split()[0].rstrip(",")]
    changed, more, others = ALMOST[name]
    lines = "\n".join(changed.get(number, line) for number, line in enumerate(nodes.strip().splitlines())).splitlines()
    check([written(line) for line in lines], {**given, **more}, {**fixed, **others}, min(3, len(lines)))


def check(nodes: list[NodeProto], given: Arrays, fixed: Arrays, least: int, most: int = 99) -> None:
    """The provider claims the nodes, and computes what ONNX Runtime does, in so many operations."""
    made = ModelProto.FromString(several(nodes, given, fixed))
    caches = (name for each in nodes for name in each.output if name.startswith("present_"))
    made.graph.output.extend(map(helper.make_empty_tensor_value_info, caches))
    assert compared(made, {name: np.asarray(x) for name, x in given.items()}, 1e-5) == "equal", plugin.get_refusal()
    assert least <= plugin.get_operations() <= most  # attention that is fused is two


LARGE: dict[str, tuple[str, Arrays, Arrays]] = {
    "rotation": (
        ROTATION,
        {"x": normal(2, 5, 30, 60), "same": normal(30, 60), "other": normal(60)},
        {"sizes": sizes(30, 30)},
    ),
    "gate": (GATE, {"x": normal(70, 480)}, {"sizes": sizes(240, 240)}),
    "integers": (INTEGERS, {"x": random.integers(-128, 128, (70, 300)).astype(np.int8), "scale": normal(70, 1)}, {}),
    "powers": (
        "Sub x most > less\nExp less > powers\nReduceSum powers axis > y",
        {"x": normal(70, 300), "most": normal(70, 1)},
        {"axis": sizes(-1)},
    ),
    "update": (
        "MatMul k v > more\nAdd state more > y",
        {"state": normal(9, 50, 40), "k": normal(9, 50, 1), "v": normal(9, 1, 40)},
        {},
    ),
    "sums": ("CumSum x axis > y", {"x": normal(70, 300)}, {"axis": np.int64(1)}),
}


@pytest.mark.parametrize("name", LARGE)
def test_threads_divide_what_is_fused(name: str) -> None:
    nodes, given, fixed = LARGE[name]
    check([written(line) for line in nodes.strip().splitlines()], given, fixed, 1, 1)

"""Nodes that are almost what the provider's operators take: others compute them, and the refusal has the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
from differential import compared
from one_node import model
from onnx import GraphProto, ModelProto, TensorProto, helper
from test_near_misses import normal, sizes, written

PRODUCT, SUM, COPY = "Mul past kept > left", "Add left more > after", "Identity after > each"


def body(*lines: str, outputs: str = "after each") -> GraphProto:
    """Of a Scan whose state is `past`."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names.split()]
        for names in ("past kept more", outputs)
    ]
    return helper.make_graph([written(line) for line in lines], "body", *values)


DECAY = {"num_scan_inputs": 2, "outputs": 2, "body": body(PRODUCT, SUM, COPY)}
FIRST = DECAY | {"inputs": [normal(2, 4), normal(3, 2, 4), normal(3, 2, 4)]}  # pieces along the first axis
SECOND = DECAY | {"inputs": [normal(2, 4), normal(2, 3, 4), normal(2, 3, 4)], "scan_input_axes": [1, 1]}
MATRIX = DECAY | {"body": body("MatMul kept past > left", SUM, COPY)}
BODIES = {
    "the sum is scaled": body("Add past more > left", "Mul left kept > after", COPY),
    "no product": body("Sub past kept > left", SUM, COPY),
    "no sum": body(PRODUCT, "Sub left more > after", COPY),
    "no copy": body(PRODUCT, SUM, "Neg after > each"),
    "four nodes": body(PRODUCT, SUM, "Neg after > less", "Identity less > each"),
    "a copy of what is added": body(PRODUCT, SUM, "Identity more > each"),
    "the product is not added to": body(PRODUCT, "Add past more > after", "Identity left > each"),
    "the product is the state": body("Mul past kept > after", "Add after more > each", "Identity each > unread"),
    "the product of the others": body("Mul kept more > left", "Add left past > after", COPY),
    "one output": body(PRODUCT, SUM, COPY, outputs="after"),
}


@pytest.mark.parametrize("name", BODIES)
def test_other_bodies_are_no_recurrences(name: str) -> None:
    how = FIRST | {"body": BODIES[name], "outputs": len(BODIES[name].output)}
    refused("Scan", how, "a body that multiplies a state by a factor or a matrix and adds to it")


def refused(op: str, how: dict[str, Any], why: str) -> None:
    inputs = how["inputs"]
    given = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in how.get("fixed", ())}
    made = model(op, inputs, **{name: value for name, value in how.items() if name != "inputs"})
    assert compared(ModelProto.FromString(made), given) == "not claimed"
    assert why in plugin.get_refusal()


def product(bits: int = 4, block: int = 32, **more: np.ndarray) -> dict[str, Any]:
    """MatMulNBits of a vector of 64 numbers and 3 rows."""
    blocks = -(-64 // block)
    inputs = [normal(2, 64), np.zeros((3, blocks, block * bits // 8), np.uint8), normal(3, blocks)]
    inputs += [more.get(name) for name in ("zeros", "order", "bias")]
    return {"inputs": inputs, "K": 64, "N": 3, "bits": bits, "block_size": block, "accuracy_level": 4}


def constant(*inputs: np.ndarray) -> dict[str, Any]:
    return {"inputs": inputs, "fixed": [1]}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an order of columns": ("MatMulNBits", product(order=np.zeros(64, np.int32)), "no g_idx"),
    "zero points as floats": ("MatMulNBits", product(zeros=normal(3, 2)), "zero points in as many bits"),
    "large blocks": ("MatMulNBits", product(block=8192), "4 or 8 bits in blocks"),
    "two bits": ("MatMulNBits", product(bits=2), "attribute bits that is supported"),
    "a scale for a block": (
        "DequantizeLinear",
        {"inputs": [np.zeros((4, 6), np.int8), normal(2, 6)], "axis": 0, "block_size": 2},
        "attribute block_size that is supported",
    ),
    "pads that cut": ("Pad", constant(normal(3, 4), sizes(-1, 0, 1, 0)), "two numbers for each axis"),
    "pads of integers": ("Pad", constant(np.arange(6), sizes(1, 0)), "float32"),
    "pieces from the end": ("Scan", FIRST | {"scan_input_directions": [1, 1]}, "pieces in order"),
    "pieces written from the end": ("Scan", FIRST | {"scan_output_directions": [1]}, "pieces in order"),
    "pieces written along the first axis": ("Scan", SECOND | {"scan_output_axes": [0]}, "one axis of all"),
    "pieces written as by default": ("Scan", SECOND, "one axis of all"),
    "pieces of two axes": (
        "Scan",
        SECOND | {"inputs": [normal(2, 4), normal(3, 2, 4), normal(2, 3, 4)], "scan_input_axes": [0, 1]},
        "one axis of all",
    ),
    "a factor for columns": (
        "Scan",
        FIRST | {"inputs": [normal(2, 4), normal(3, 1, 4), normal(3, 2, 4)]},
        "for its rows",
    ),
    "a factor for all rows before the axis": (
        "Scan",
        SECOND | {"inputs": [normal(2, 4), normal(1, 3, 4), normal(2, 3, 4)], "scan_output_axes": [1]},
        "for its rows",
    ),
    "a factor without an axis": (
        "Scan",
        FIRST | {"inputs": [normal(2, 4), normal(3), normal(3, 2, 4)]},
        "a factor for each piece",
    ),
    "a matrix from the right": (
        "Scan",
        DECAY
        | {"body": body("MatMul past kept > left", SUM, COPY)}
        | {"inputs": [normal(5, 4, 4), normal(3, 5, 4, 4), normal(3, 5, 4, 4)]},
        "multiplies a state by a factor or a matrix",
    ),
    "a matrix of other sizes": (
        "Scan",
        MATRIX | {"inputs": [normal(2, 4), normal(3, 1, 2), normal(3, 2, 4)]},
        "a square matrix for each of a state",
    ),
    "matrices of axes before": (
        "Scan",
        MATRIX | {"inputs": [normal(5, 2, 4), normal(3, 5, 2, 2), normal(3, 5, 2, 4)]},
        "a square matrix for each of a state",
    ),
    "axes apart": ("ReduceSum", constant(normal(2, 3, 4), sizes(0, 2)), "axes of its input that follow each other"),
    "powers of two types": ("Pow", {"inputs": [normal(3), np.arange(3)]}, "two float32, int32 or int64"),
    "powers of integers": ("Pow", {"inputs": [np.arange(3), np.arange(3)]}, "two float32, int32 or int64"),
    "remainders of floats": ("Mod", {"inputs": [normal(3), normal(3)], "fmod": 1}, "attribute fmod that is supported"),
    "half precision": ("Tanh", {"inputs": [normal(3).astype(np.float16)]}, "expected float32 for Tanh"),
    "half precision as integers": (
        "Cast",
        {"inputs": [np.float16([2])], "to": TensorProto.INT64},
        "another conversion",
    ),
    "double precision": ("Tanh", {"inputs": [np.ones(3)]}, "received a tensor of the type 11"),
    "flags that are compared": ("Equal", {"inputs": [np.ones(3, bool), np.ones(3, bool)]}, "float32, int32 or int64"),
    "flags as integers": ("Cast", {"inputs": [np.ones(3, bool)], "to": TensorProto.INT64}, "another conversion"),
    "17 axes": ("Add", {"inputs": [normal(*[1] * 17), normal(1)]}, "at most 16 dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_others(name: str) -> None:
    refused(*REFUSED[name])

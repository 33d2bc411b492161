"""Golden graphs with small changes, and inputs for them."""

from __future__ import annotations

import contextlib
import random
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from differential import Feeds, ends_onnxruntime, plain_options
from onnx import ModelProto, helper, numpy_helper
from test_operators import CHECKS

GOLDEN = Path(__file__).parents[3] / "models" / "tiny"
GRAPHS = ("tiny", "gated", "top3", "packed")
TRIES = 12
INTEGERS = (-3, -2, -1, 0, 1, 2, 3, 7, 1000, 2**31, 2**62, -(2**62))


def mutate(made: ModelProto, chance: random.Random) -> None:
    """Change one thing: an operator, an attribute, an input, an output, integers that the graph holds, or the opset."""
    at = chance.randrange(len(made.graph.node))
    node = made.graph.node[at]
    kind = chance.randrange(6)
    if kind == 0:
        node.op_type = chance.choice(sorted(CHECKS))
    elif kind == 1:
        name = chance.choice(["axis", "keepdims", "perm", "transB", "allowzero", "to", "noop_with_empty_axes", "start"])
        if node.attribute and chance.random() < 0.8:
            name = chance.choice(node.attribute).name
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        value = [chance.randrange(3) for _ in range(3)] if name == "perm" else chance.choice(INTEGERS)
        node.attribute.append(helper.make_attribute(name, value))
    elif kind == 2:
        # of nearby nodes, since most of those have its type and its rank
        before = [name for other in made.graph.node[max(0, at - 6) : at] for name in (*other.input, *other.output)]
        node.input[chance.randrange(len(node.input))] = chance.choice([*before, ""])
    elif kind == 3:
        node.output[chance.randrange(len(node.output))] = ""
    elif kind == 4:
        held = [each for each in made.graph.initializer if each.data_type == onnx.TensorProto.INT64 and any(each.dims)]
        if held:
            tensor = chance.choice(held)
            numbers = numpy_helper.to_array(tensor).copy()
            numbers.flat[chance.randrange(numbers.size)] = chance.choice(INTEGERS)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    else:
        made.opset_import[0].version = chance.randrange(11, 27)


def feeds_of(made: ModelProto, chance: random.Random, numbers: np.random.Generator) -> Feeds:
    """Inputs of any sizes where the dimensions have names, one in four with NaN or infinity."""
    found = {}
    sizes: dict[str, int] = {}
    for value in made.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [
            dim.dim_value or sizes.setdefault(dim.dim_param, chance.choice([0, 1, 2, 2, 3, 5]))
            for dim in value.type.tensor_type.shape.dim
        ]
        x = numbers.standard_normal(shape) if kind == np.float32 else numbers.integers(0, 5, shape)
        if kind == np.float32 and x.size and chance.random() < 0.25:
            x.flat[chance.randrange(x.size)] = chance.choice([np.nan, np.inf, -np.inf])
        found[value.name] = x.astype(kind)
    return found


@cache
def golden() -> list[bytes]:
    return [(GOLDEN / f"{name}.onnx").read_bytes() for name in GRAPHS]


def draw(seed: int) -> tuple[ModelProto, Feeds]:
    chance = random.Random(seed)
    base = ModelProto.FromString(chance.choice(golden()))
    made = base
    for _ in range(TRIES):  # most changes are refused when ONNX Runtime loads the model
        changed = ModelProto.FromString(base.SerializeToString())
        for _ in range(chance.randrange(1, 3)):
            mutate(changed, chance)
        if any(map(ends_onnxruntime, changed.graph.node)):
            continue
        made = changed
        with contextlib.suppress(Exception):
            ort.InferenceSession(made.SerializeToString(), plain_options(), providers=["CPUExecutionProvider"])
            break
    return made, feeds_of(made, chance, np.random.default_rng(seed))

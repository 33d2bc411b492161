"""Golden graphs with small changes: equal to ONNX Runtime's result, not claimed, or invalid for both."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from differential import Feeds, compared
from onnx import ModelProto, helper, numpy_helper
from test_operators import CHECKS

GOLDEN = Path(__file__).parents[3] / "models" / "tiny"
GRAPHS = ("tiny", "gated", "top3", "packed")
COUNT = 200
INTEGERS = (-3, -2, -1, 0, 1, 2, 3, 7, 1000, 2**31, 2**62, -(2**62))


def mutate(made: ModelProto, chance: random.Random) -> None:
    """Change one thing: an operator, an attribute, an input, an output, integers that the graph holds, or the opset."""
    node = chance.choice(made.graph.node)
    kind = chance.randrange(6)
    if kind == 0:
        node.op_type = chance.choice(sorted(CHECKS))
    elif kind == 1:
        name = chance.choice(["axis", "keepdims", "perm", "transB", "allowzero", "to", "noop_with_empty_axes", "start"])
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        value = [chance.randrange(3) for _ in range(3)] if name == "perm" else chance.choice(INTEGERS)
        node.attribute.append(helper.make_attribute(name, value))
    elif kind == 2:
        node.input[chance.randrange(len(node.input))] = chance.choice(
            ["", *(name for other in made.graph.node for name in other.input)]
        )
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
        made.opset_import[0].version = chance.randrange(11, 24)


def feeds_of(made: ModelProto, numbers: np.random.Generator) -> Feeds:
    found = {}
    for value in made.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
        x = numbers.standard_normal(shape) if kind == np.float32 else numbers.integers(0, 5, shape)
        found[value.name] = x.astype(kind)
    return found


def test_mutants_of_golden_graphs() -> None:
    counts: Counter[str] = Counter()
    models = [onnx.load(GOLDEN / f"{name}.onnx") for name in GRAPHS]
    for seed in range(COUNT):
        chance = random.Random(seed)
        made = ModelProto.FromString(chance.choice(models).SerializeToString())
        for _ in range(chance.randrange(1, 3)):
            mutate(made, chance)
        try:
            counts[compared(made, feeds_of(made, np.random.default_rng(seed)))] += 1
        except Exception as error:
            raise AssertionError(f"mutant {seed}") from error
    assert counts["equal"] > 10 and counts["not claimed"] > 10, counts

"""ONNX's own tests of operators over opsets 13 to 26: what the provider claims, it computes as ONNX Runtime does."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np
from differential import Feeds, compared
from onnx import ModelProto, defs, numpy_helper
from test_operators import CHECKS

OPSETS = range(13, 27)


def known(made: ModelProto) -> bool:
    return all(node.op_type in CHECKS for node in made.graph.node)


def cases() -> list[tuple[str, ModelProto, Feeds]]:
    """Name, model and inputs of each node test of tensors; few of operators that the provider lacks."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, on the overflows that some tests are about
        every = collect_testcases(None)
    found = []
    for number, case in enumerate(every):
        names = [value.name for value in case.model.graph.input]
        for inputs, _ in case.data_sets or []:
            if not all(isinstance(x, np.ndarray | np.generic) for x in inputs) or len(inputs) != len(names):
                continue
            if known(case.model) or number % 20 == 0:
                found.append((case.name, case.model, dict(zip(names, map(np.asarray, inputs), strict=True))))
    return found


def versions(made: ModelProto, opset: int) -> tuple[int, ...]:
    """Versions of the operators' definitions at an opset; 0 where there is none."""
    found = []
    for node in made.graph.node:
        try:
            found.append(defs.get_schema(node.op_type, opset, node.domain).since_version)
        except defs.SchemaError:
            found.append(0)
    return tuple(found)


def variants(made: ModelProto, feeds: Feeds) -> Iterator[tuple[ModelProto, Feeds]]:
    """The model at each opset with other definitions; with integers as constants; with symbolic dimensions."""
    seen = set()
    for opset in OPSETS:
        key = versions(made, opset)
        if key in seen or (seen and not known(made)):
            continue
        seen.add(key)
        for are_constant in (False, True):
            for is_symbolic in (False, True):
                other = ModelProto.FromString(made.SerializeToString())
                other.ir_version = min(other.ir_version, 11)
                for domain in other.opset_import:
                    if domain.domain == "":
                        domain.version = opset
                left = dict(feeds)
                if are_constant:
                    for name in [name for name, x in feeds.items() if x.dtype in (np.int64, np.int32)]:
                        other.graph.initializer.append(numpy_helper.from_array(left.pop(name), name))
                    kept = [value for value in other.graph.input if value.name in left]
                    del other.graph.input[:]
                    other.graph.input.extend(kept)
                if is_symbolic:
                    for value in [*other.graph.input, *other.graph.output]:
                        for number, dim in enumerate(value.type.tensor_type.shape.dim):
                            dim.dim_param = f"{value.name}_{number}"
                yield other, left


def test_node_tests_of_onnx() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for name, made, feeds in cases():
        for other, left in variants(made, feeds):
            try:
                counts[compared(other, left)] += 1
            except Exception as error:
                opset = next(each.version for each in other.opset_import if each.domain == "")
                wrong.append(f"{name} at opset {opset}: {error}")
    assert not wrong, (len(wrong), wrong[:20])
    assert counts["equal"] > 500

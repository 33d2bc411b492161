"""Faults for exported graphs: each changes the function and keeps inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

Graph = onnx.GraphProto


def inject(path: Path, fault: Callable[[Graph], None]) -> Path:
    """Write the faulty graph to a new file beside `path`."""
    model = onnx.load(path)
    before = model.SerializeToString(deterministic=True)
    fault(model.graph)
    del model.graph.value_info[:]
    assert model.SerializeToString(deterministic=True) != before, "the fault changed nothing"
    onnx.checker.check_model(model, full_check=True)
    wrong = path.with_name(f"wrong-{path.name}")
    onnx.save(model, wrong)
    return wrong


def swap_outputs(first: str, second: str) -> Callable[[Graph], None]:
    """Swap the outputs of two states."""

    def fault(graph: Graph) -> None:
        names = {first: second, second: first}
        for node in graph.node:
            for field in (node.output, node.input):
                for i, name in enumerate(field):
                    field[i] = names.get(name, name)

    return fault


def unchanged(state: str) -> Callable[[Graph], None]:
    """The step uses the new state but returns the old one."""

    def fault(graph: Graph) -> None:
        for node in graph.node:
            for field in (node.output, node.input):
                for i, name in enumerate(field):
                    field[i] = "inner" if name == f"present_{state}" else name
        graph.node.append(helper.make_node("Identity", [f"past_{state}"], [f"present_{state}"]))

    return fault


def unread(state: str) -> Callable[[Graph], None]:
    """Every step reads zeros in place of this state."""

    def fault(graph: Graph) -> None:
        _replace_input(graph, f"past_{state}", "nothing")
        graph.node.insert(0, helper.make_node("Sub", [f"past_{state}"] * 2, ["nothing"]))

    return fault


def doubled(output: str) -> Callable[[Graph], None]:
    """A result is twice what it should be, as by a scale that is off by 2."""

    def fault(graph: Graph) -> None:
        node = next(n for n in graph.node if n.output[0] == output)
        node.output[0] = "half"
        _insert_after(graph, node, helper.make_node("Add", ["half", "half"], [output]))

    return fault


def weight(name: str, change: float) -> Callable[[Graph], None]:
    """Change one element of one weight."""

    def fault(graph: Graph) -> None:
        tensor = next(t for t in graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[array.size // 2] += change
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return fault


def constant(old: float, new: float) -> Callable[[Graph], None]:
    """Change a scalar constant: an eps, a scale, or the position increment 1."""

    def fault(graph: Graph) -> None:
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.shape == () and array == np.asarray(old, array.dtype):
                tensor.CopyFrom(numpy_helper.from_array(np.asarray(new, array.dtype), tensor.name))
                return
        raise AssertionError(f"no constant {old}")

    return fault


def regroup(name: str, shape: tuple[int, ...]) -> Callable[[Graph], None]:
    """Replace the first Reshape to (B, G, R, ·) by one to (B, R, G, ·) and a Transpose: heads change groups."""

    def fault(graph: Graph) -> None:
        constants = {t.name: tuple(numpy_helper.to_array(t).ravel().tolist()) for t in graph.initializer}
        node = next(n for n in graph.node if n.op_type == "Reshape" and constants.get(n.input[1]) == shape)
        batch, groups, repeats, size = shape
        graph.initializer.append(numpy_helper.from_array(np.array([batch, repeats, groups, size], np.int64), name))
        out = node.output[0]
        node.input[1], node.output[0] = name, f"{name}.out"
        _insert_after(graph, node, helper.make_node("Transpose", [f"{name}.out"], [out], perm=[0, 2, 1, 3]))

    return fault


def swap_parts(graph: Graph) -> None:
    """Swap the outputs of the Split of a looked-up row into cosines and sines."""
    rows = next(n.output[0] for n in graph.node if n.op_type == "Gather" and n.input[0].endswith(".table"))
    node = next(n for n in graph.node if n.op_type == "Split" and n.input[0] == rows)
    first, second = node.output
    node.output[0], node.output[1] = second, first


def attribute(operator: str, name: str, value: float) -> Callable[[Graph], None]:
    """Change an attribute of the first node of an operator."""

    def fault(graph: Graph) -> None:
        node = next(n for n in graph.node if n.op_type == operator)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return fault


def mix_batch(graph: Graph) -> None:
    """Embeddings depend slightly on the other sequences."""
    node = next(n for n in graph.node if n.op_type == "Gather")
    out = node.output[0]
    node.output[0] = "alone"
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([0], np.int64), "rows"),
            numpy_helper.from_array(np.array(1e-2, np.float32), "little"),
        ]
    )
    mean = helper.make_node("ReduceMean", ["alone", "rows"], ["mean"], keepdims=1)
    _insert_after(graph, node, mean)
    _insert_after(graph, mean, helper.make_node("Mul", ["mean", "little"], ["scaled"]))
    _insert_after(graph, graph.node[2], helper.make_node("Add", ["alone", "scaled"], [out]))


def _replace_input(graph: Graph, old: str, new: str) -> None:
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = new if name == old else name


def _insert_after(graph: Graph, node: NodeProto, new: NodeProto) -> None:
    index = next(i for i, n in enumerate(graph.node) if n.output[0] == node.output[0])
    graph.node.insert(index + 1, new)

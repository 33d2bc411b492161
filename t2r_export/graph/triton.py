"""A step or prefill graph as Triton Inference Server's sequence batcher can feed it.

Triton keeps the states of each sequence and stacks them along the first axis. It requires a second axis (`State` of its
model configuration has no `reshape`), so a state of shape (B) becomes one of shape (B, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from t2r_export.graph.nodes import made_of
from t2r_runtime.contract.state_spec import BATCH, StateSpec

AXIS = numpy_helper.from_array(np.array([1]), "triton.axis")
COLUMN = "_column"  # name suffix of states with an added axis


def triton_states(states: Sequence[StateSpec]) -> list[StateSpec]:
    """The states of `triton_graph`, sorted by name: Triton pairs inputs with outputs in this order."""
    return sorted((_column(spec) if _flat(spec) else spec for spec in states), key=lambda spec: spec.past)


def triton_graph(model: onnx.ModelProto, states: Sequence[StateSpec]) -> onnx.ModelProto:
    """The model with states of shape (B) as (B, 1)."""
    flat = [(spec, _column(spec)) for spec in states if _flat(spec)]
    names = {spec.past: column.past for spec, column in flat} | {spec.present: column.present for spec, column in flat}
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    before = [helper.make_node("Squeeze", [column.past, AXIS.name], [spec.past]) for spec, column in flat]
    after = [helper.make_node("Unsqueeze", [spec.present, AXIS.name], [column.present]) for spec, column in flat]
    del graph.node[:]
    graph.node.extend([*before, *model.graph.node, *after])
    for value in (*graph.input, *graph.output):
        if value.name in names:
            value.name = names[value.name]
            value.type.tensor_type.shape.dim.add().dim_value = 1
    if flat:
        graph.initializer.append(AXIS)
    return made_of(model, graph)


def _flat(spec: StateSpec) -> bool:
    return spec.shape == (BATCH,)


def _column(spec: StateSpec) -> StateSpec:
    return replace(spec, name=spec.name + COLUMN, shape=(BATCH, 1))

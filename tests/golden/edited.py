"""A graph that no export writes, but others may: states of float16, int8 and int64, which do not start as 0."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from golden.choices import sampling
from golden.computed import Array, Eager, States
from golden.models import checkpoint
from golden.texts import Case
from t2r_export.files import write_bytes

Change = Callable[[onnx.ModelProto, dict[str, Any]], object]  # changes a graph, or its parsed metadata
# dtypes and initial values of some states of tiny
DTYPES = {"S.0": np.dtype(np.float16), "z.0": np.dtype(np.int8), "position": np.dtype(np.int64)}
INITIAL = {"S.0": 0.5, "z.0": 2, "z.1": 1.5, "position": 3}


def cases(folder: Path) -> Iterator[Case]:
    """tiny.onnx with these states, and its sampled texts."""
    write_bytes(folder / "states.onnx", changed(onnx.load(folder / "tiny.onnx"), _keep))
    yield "sampling-states", "sampling", {**sampling("tiny", Kept(checkpoint("tiny"))), "graph": "states.onnx"}


def changed(good: onnx.ModelProto, change: Change) -> bytes:
    """The serialized graph after a change, with the metadata before the graph."""
    model = copy.deepcopy(good)
    said = {p.key: json.loads(p.value) for p in model.metadata_props}
    change(model, said)
    helper.set_model_props(model, {key: json.dumps(value) for key, value in said.items()})
    graph = onnx.ModelProto(graph=model.graph).SerializeToString()
    model.ClearField("graph")
    return bytes(model.SerializeToString() + graph)


class Kept(Eager):
    """A model whose states are rounded to these dtypes after each step."""

    def initial(self, batch: int) -> States:
        return {name: np.full_like(value, INITIAL.get(name, 0)) for name, value in super().initial(batch).items()}

    def step(self, ids: Array, states: Mapping[str, Array]) -> tuple[Array, States]:
        logits, after = super().step(ids, states)
        return logits, {n: v.astype(DTYPES[n]).astype(v.dtype) if n in DTYPES else v for n, v in after.items()}


def _keep(model: onnx.ModelProto, said: dict[str, Any]) -> None:
    for spec in said["t2r.states"]:
        spec["initial"] = INITIAL.get(spec["name"], spec["initial"])
        if spec["name"] in DTYPES:
            _cast(model, spec["name"], spec["dtype"], DTYPES[spec["name"]])
            spec["dtype"] = DTYPES[spec["name"]].name


def _cast(model: onnx.ModelProto, name: str, inside: str, outside: np.dtype[Any]) -> None:
    """Cast a state of the graph to another dtype at input and output."""
    past, present = f"past_{name}", f"present_{name}"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{n}_inside" if n in (past, present) else n for n in names]
    kept, own = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in (outside, inside))
    model.graph.node.insert(0, helper.make_node("Cast", [past], [f"{past}_inside"], to=own))
    model.graph.node.append(helper.make_node("Cast", [f"{present}_inside"], [present], to=kept))
    for value in (*model.graph.input, *model.graph.output):
        if value.name in (past, present):
            value.type.tensor_type.elem_type = kept

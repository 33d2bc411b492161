"""Calls of a graph with low-rank adapters: chosen for each row, kept when rows move, and gone after a reset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from golden.calls import Script
from golden.computed import Array, Eager, States
from golden.models import GRID, checkpoint
from golden.texts import Case
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import assemble
from t2r_export.export import export
from t2r_export.files import write_bytes

NAMES = ("legal", "poems-2")
WEIGHTS = ("blocks.0.parts.0.o.weight", "blocks.2.parts.1.up.weight")
ADAPTED = "adapter"


class Beside:
    """The eager models without and with each adapter: the state `adapter` chooses one for each row."""

    def __init__(self, models: Sequence[Checkpoint]) -> None:
        self.models = [Eager(model) for model in models]

    def initial(self, batch: int) -> States:
        return {**self.models[0].initial(batch), ADAPTED: np.zeros(batch, np.int32)}

    def step(self, ids: Array, states: Mapping[str, Array]) -> tuple[Array, States]:
        rest, chosen = dict(states), (states[ADAPTED], np.arange(len(ids)))
        del rest[ADAPTED]
        logits, after = zip(*(model.step(ids, rest) for model in self.models), strict=True)
        kept = {name: np.stack([one[name] for one in after])[chosen] for name in rest}
        return np.stack(logits)[chosen], {**kept, ADAPTED: states[ADAPTED]}


class Adapted(Script):
    def __post_init__(self) -> None:
        self.factors = {name: _factors(self.golden, name) for name in NAMES}
        models = [_changed(self.golden, factors) for factors in self.factors.values()]
        self.made: Any = Beside([self.golden, *models])
        self.states = self.made.initial(self.rows)

    def adapt(self, names: Sequence[str | None]) -> None:
        self.states[ADAPTED] = np.array([NAMES.index(name) + 1 if name else 0 for name in names], np.int32)
        self.operations.append({"adapt": list(names), "position": self.position})

    def reorder(self, rows: Sequence[int]) -> None:
        self.states = {name: value[list(rows)] for name, value in self.states.items()}
        self.operations.append({"reorder": list(rows)})


def cases(folder: Path) -> Iterator[Case]:
    script = Adapted("adapters.onnx", checkpoint("tiny"), 1)
    _write(folder / script.graph, script)
    script.refused("argument", adapt=["prose"])
    script.reset(3)
    script.step([1, 5, 3])
    script.adapt(["poems-2", None, "legal"])
    script.step([8, 8, 8])
    for names in (["legal", "prose", None], ["legal", "legal"]):
        script.refused("argument", adapt=names)
    script.prefill([[3, 16], [0, 2], [3, 16]])
    script.reorder([2, 0, 0])
    script.step([6, 6, 6])
    script.adapt([None, "legal", "poems-2"])
    script.step([4, 9, 11])
    script.reset(1)
    script.step([5])
    script.adapt(["legal"])
    last = script.generate([7], 6, {"temperature": 0, "no_repeat_ngram": 1, "stop_tokens": []})
    script.reset(2)
    script.adapt(["legal", "poems-2"])
    script.step([last, last])
    yield "calls-adapters", "calls", script.case()


def _factors(golden: Checkpoint, name: str) -> dict[str, tuple[Array, Array]]:
    """B (out, rank) and A (rank, in) of each changed weight. Rank 1 and 2."""
    random, rank, weights = np.random.default_rng(list(name.encode())), NAMES.index(name) + 1, golden.model.state_dict()

    def drawn(*shape: int) -> Array:
        return (random.integers(-GRID // 8, GRID // 8 + 1, shape) * 4 / GRID).astype(np.float32)

    return {key: (drawn(len(weights[key]), rank), drawn(rank, weights[key].shape[1])) for key in WEIGHTS}


def _changed(golden: Checkpoint, factors: Mapping[str, tuple[Array, Array]]) -> Checkpoint:
    weights = dict(golden.model.state_dict())
    for key, (outer, inner) in factors.items():
        weights[key] = weights[key] + torch.from_numpy(outer @ inner)
    model = assemble(golden.config, weights)
    return Checkpoint(golden.config, model.eval(), None, {}, golden.sha256)


def _write(path: Path, script: Adapted) -> None:
    """The graph, with these factors for those that the export found, whose roundings depend on the machine."""
    models = {name: _changed(script.golden, factors).model for name, factors in script.factors.items()}
    export(script.golden, path, adapters={name: lambda model=model: model for name, model in models.items()})
    graph = onnx.load(path)
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    for key in WEIGHTS:
        for kind in "AB":
            tensor = stored[f"adapters.{key.removesuffix('.weight')}.{kind}"]
            table = np.zeros_like(numpy_helper.to_array(tensor))
            for number, factors in enumerate(script.factors.values(), 1):
                outer, inner = factors[key]
                place = (number, slice(None), slice(len(inner))) if kind == "A" else (number, slice(len(inner)))
                table[place] = inner.T if kind == "A" else outer.T
            tensor.CopyFrom(numpy_helper.from_array(table, tensor.name))
    write_bytes(path, graph.SerializeToString())

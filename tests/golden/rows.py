"""Changes of states between steps: dropped, repeated and reordered rows, and a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from golden.computed import Array, Eager, States
from golden.models import checkpoint
from golden.texts import Case
from golden.traces import array
from t2r_export.proof.tolerances import tolerance
from t2r_runtime import Decoder

REORDERS = {3: [2, 0], 5: [1, 1, 0], 8: [2, 0, 1], 11: [1]}  # number of steps -> rows that remain
STEPS, SAVED, READ_AFTER, TOKEN = 14, 9, 5, 4


def cases(folder: Path) -> Iterator[Case]:
    """Batches of states of constant size and of others, and a snapshot of each."""
    for name in ("tiny", "tiny-hybrid", "packed"):
        if name != "packed":
            yield f"batch-{name}", "calls", _batch(name)
        yield f"snapshot-{name}", "snapshot", _snapshot(name, folder)


def bound() -> dict[str, float]:
    bound = tolerance("cpu", "none")
    return {"logits_absolute": bound.logits, "state_relative_to_its_largest": bound.states}


def _batch(name: str) -> dict[str, Any]:
    made, random = Eager(checkpoint(name)), np.random.default_rng(list(f"{name} batch".encode()))
    states, rows = made.initial(3), 3
    operations: list[dict[str, Any]] = [{"reset": 3}]
    for n in range(STEPS):
        if n in REORDERS:
            operations.append({"reorder": REORDERS[n]})
            states, rows = {key: value[REORDERS[n]] for key, value in states.items()}, len(REORDERS[n])
        ids = random.integers(0, made.vocab_size, rows)
        logits, states = made.step(ids, states)
        operations.append({"step": ids.tolist(), "logits": array(logits)})
    end = {spec.name: array(states[spec.name]) for spec in made.specs}
    return {"graph": f"{name}.onnx", "tolerance": bound(), "operations": operations, "end": end}


def _snapshot(name: str, folder: Path) -> dict[str, Any]:
    """States in float32, as a file that the runtime must restore bit for bit."""
    made, random = Eager(checkpoint(name)), np.random.default_rng(list(f"{name} snapshot".encode()))
    decoder = Decoder(folder / f"{name}.onnx", threads=1)
    batch = 1 if name == "tiny" else 2
    decoder.reset(batch)
    whole = {spec.name: _rounded(spec.dims(batch, SAVED), spec.dtype, random) for spec in decoder.signature.states}
    if "position" in whole:
        whole["position"] = np.arange(SAVED, SAVED - batch, -1, dtype=np.int32)
    decoder.set_state(whole, SAVED)
    decoder.save_state(folder / f"{name}.state", TOKEN if name == "tiny" else None)
    ids, rows, states = random.integers(0, made.vocab_size, (batch, READ_AFTER)), [], _of_layers(whole, made)
    for column in ids.T:
        logits, states = made.step(column, states)
        rows.append(logits)
    return {
        "graph": f"{name}.onnx",
        "snapshot": f"{name}.state",
        "tolerance": bound(),
        "position": SAVED,
        "token": TOKEN if name == "tiny" else None,
        "states": {key: array(value) for key, value in whole.items()},
        "ids": array(ids),
        "logits": array(np.stack(rows, 1)),
    }


def _rounded(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Array:
    return ((random.integers(256, 512, shape) + 0.5) / 256).astype(dtype)


def as_float64(states: States) -> States:
    """Floating-point states as float64, others unchanged."""
    return {key: value.astype(np.float64) if value.dtype.kind == "f" else value for key, value in states.items()}


def _of_layers(states: States, made: Eager) -> States:
    """The eager model's states, in float64, from those of a graph, which may be packed."""
    wide = as_float64(states)
    if wide.keys() == {spec.name for spec in made.specs}:
        return wide
    return {spec.name: wide[kind][:, int(n)] for spec in made.specs for kind, _, n in [spec.name.partition(".")]}

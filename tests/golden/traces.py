"""The traces: tokens, a random state to start from, the logits after every token and the states after the last.

Each has a greedy continuation, the largest logits if the graph has --top-k, and the cuts of a second reading if it
has a prefill graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from golden.computed import Array, AsRun, Computed, Eager, States
from golden.models import GRID, MODELS, checkpoint
from t2r_export.graph.layout import pack, states_in
from t2r_export.proof.tolerances import Tolerance, tolerance
from t2r_runtime import Decoder

BATCH, STEPS, CACHED = 2, 24, 3
GREEDY = 32  # tokens of a greedy text
MARGIN = 1e-2  # between the best two tokens of each greedy choice, so that rounding cannot change it
CUTS = (1, 7, 2, 13, 1)  # pieces of a prompt of STEPS tokens
# a quantized graph is compared with itself: w8 and w4 products are float32, but int8 products are integers, of which
# one rounded to its neighbour changes a logit by a hundredth
QUANTIZED = {"w8": Tolerance(1e-4, 1e-5), "w4": Tolerance(1e-4, 1e-5), "int8": Tolerance(0.1, 0.05)}


def trace(name: str, graph: Path) -> dict[str, Any]:
    """What the graph of the golden model `name` must compute, as plain JSON data."""
    golden = MODELS[name]
    scheme = "none" if golden.quantized is None else golden.quantized.scheme
    eager = golden.quantized is None
    made: Computed = Eager(checkpoint(name), golden.options.past_end) if eager else AsRun(graph)
    bound = QUANTIZED.get(scheme) or tolerance("cpu", scheme)
    signature = Decoder(graph, threads=1, companions=()).signature
    specs = states_in(made.specs, signature)

    def in_graph(states: States) -> dict[str, Any]:
        given = pack(states, specs)
        return {spec.name: array(given[spec.name]) for spec in specs}

    random = np.random.default_rng(list(f"{name} trace".encode()))
    ids = random.integers(0, made.vocab_size, (BATCH, STEPS))
    start = _start(made, random)
    states, rows = start, []
    for column in ids.T:
        row, states = made.step(column, states)
        rows.append(row)
    logits = np.stack(rows, 1)
    return {
        "graph": graph.name,
        "tolerance": {"logits_absolute": bound.logits, "state_relative_to_its_largest": bound.states},
        "ids": array(ids),  # (B, T)
        "start": in_graph(start),
        "logits": array(logits),  # (B, T, vocabulary): [:, t] after token t
        "end": in_graph(states),
        **({"top": _top(logits, golden.options.top_k)} if golden.options.top_k else {}),
        **({"cuts": list(CUTS)} if golden.options.prefill else {}),
        **({"greedy": greedy(made, golden.prompt)} if golden.prompt else {}),
    }


def array(values: Array) -> dict[str, Any]:
    """Shape and values of an array in row-major order; nine digits restore every float32."""
    whole = values.dtype.kind in "iu"
    numbers = [int(x) if whole else float(f"{x:.9g}") for x in values.flatten().tolist()]
    return {"shape": list(values.shape), "data": numbers}


def greedy(made: Computed, prompt: tuple[int, ...]) -> dict[str, Any]:
    """A prompt, and the tokens that follow it in a new text, without regard to end tokens."""
    tokens, states = list(prompt), made.initial(1)
    for place in range(len(prompt) + GREEDY - 1):
        logits, states = made.step(np.array([tokens[place]]), states)
        if place >= len(prompt) - 1:
            second, best = np.sort(logits[0])[-2:].tolist()
            assert best - second > MARGIN, "choose another prompt"
            tokens.append(int(logits[0].argmax()))
    return {"prompt": list(prompt), "tokens": tokens[len(prompt) :]}


def _start(made: Computed, random: np.random.Generator) -> States:
    """Random states, none of them zero: z between 1 and 2, positions that differ, caches of `CACHED` tokens."""
    states: States = {}
    for spec in made.specs:
        shape = spec.dims(BATCH, CACHED)
        if spec.dtype == "int32":
            states[spec.name] = np.arange(CACHED, CACHED + 8 * BATCH, 8, dtype=np.int32)
        else:
            low = GRID if spec.name.startswith("z") else -GRID
            states[spec.name] = (random.integers(low, 2 * GRID, shape) + 0.5) / GRID
    return states


def _top(logits: Array, count: int) -> dict[str, Any]:
    """The largest logits (B, T, count) and their tokens."""
    order = np.argsort(-logits, axis=2, kind="stable")
    largest = np.take_along_axis(logits, order[..., : count + 1], 2)
    assert np.diff(-largest).min() > 1e-3, "logits that rounding could exchange: choose other weights"
    return {"logits": array(largest[..., :count]), "tokens": array(order[..., :count])}

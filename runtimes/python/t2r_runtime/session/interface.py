"""Inputs and outputs of graphs as runtimes/CONTRACT.md defines them for given metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import (
    DRAFT_CHECK,
    ENCODER,
    HIDDEN,
    KEEP,
    LOG_SUM,
    LOGITS,
    PREFILL,
    SOURCE_IDS,
    SOURCE_LENGTHS,
    STEP,
    TOP_LOGITS,
    TOP_TOKENS,
    Signature,
)
from t2r_runtime.contract.state_spec import BATCH, GROWING, POSITION, SOURCE_LENGTH, TOKENS, StateSpec
from t2r_runtime.errors import UserError, printable

Form = tuple[str, tuple[int | str | None, ...]]  # dtype, dimensions
Array = NDArray[Any]


def check_interface(signature: Signature, inputs: Mapping[str, Form], outputs: Mapping[str, Form]) -> None:
    """Check that the inputs and outputs of a graph are exactly those of `signature`.

    Args:
        inputs, outputs: name → (dtype, dimensions); a dimension that is not a number is free.

    Raises:
        UserError: lists all missing and unexpected names, or else all wrong dtypes and shapes.
    """
    wanted_in, wanted_out = (_encoder if signature.role == ENCODER else _step)(signature)
    problems = [*_names(wanted_in, inputs, " inputs"), *_names(wanted_out, outputs, " outputs")]
    if not problems:
        pairs = [(name, form, inputs[name]) for name, form in wanted_in.items()]
        pairs += [(name, form, outputs[name]) for name, form in wanted_out.items()]
        problems = [
            f"{name} {_show(got)} for {_show(form)}"
            for name, form, got in pairs
            if not _agrees(form, got, signature.batch)
        ]
    if problems:
        raise UserError(
            "the inputs and outputs that the graph's metadata lists",
            printable("; ".join(problems)),
            "export the model again",
            "interface",
        )


def first_feeds(signature: Signature) -> dict[str, Array]:
    """Inputs of a run that reads token 0, or a vector of zeros, at the start of a text, by name."""
    batch = signature.batch or 1
    if signature.role == ENCODER:
        length = 2 if signature.source is None else signature.source.source_length or 2
        return {SOURCE_IDS: np.zeros((batch, length), np.int64), SOURCE_LENGTHS: np.full(batch, 1, np.int64)}
    states = {spec.past: np.full(spec.dims(batch), spec.initial, spec.dtype) for spec in signature.states}
    if signature.role == DRAFT_CHECK:
        states[KEEP] = np.ones(batch, np.int64)
    many = signature.role in (PREFILL, DRAFT_CHECK)
    read: Any = signature.input_dims(*((batch, 2) if many else (batch,)))
    return {signature.input_name: np.zeros(read, signature.input_dtype), **states}


def check_states(signature: Signature, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[int, int]:
    """Check the names, dtypes and shapes of states for a graph.

    Args:
        found: name → (dtype, shape).

    Returns:
        The batch size, and the length of growing caches (0 if there are none).

    Raises:
        UserError: lists all missing and unexpected names, or else all wrong dtypes and shapes.
    """
    specs = {spec.name: spec for spec in signature.states}
    problems = _names(specs, found)
    letters: dict[str, int] = {} if signature.batch is None else {BATCH: signature.batch}
    if not problems:
        problems = [
            f"{name} {found[name][0]} {found[name][1]} for {spec.dtype} {spec.shape}"
            for name, spec in specs.items()
            if not _fits(spec, *found[name], letters)
        ]
    if problems:
        raise UserError(
            "the states of this graph, with equal batch sizes, cache lengths and source lengths",
            printable("; ".join(problems)),
            "take them from the same model",
            "snapshot",
        )
    return letters.get(BATCH, 1), letters.get(GROWING, 0)


def tokens_read(states: Mapping[str, Array], batch: int, length: int, otherwise: int) -> NDArray[np.int64]:
    """Number of tokens read by each sequence (B,): its position state, else the length of its cache, else `otherwise`.

    Raises:
        UserError: a negative position.
    """
    positions = states[POSITION].astype(np.int64) if POSITION in states else np.full(batch, length or otherwise)
    if positions.min() < 0:
        do = "take the states from a decoder or a snapshot"
        raise UserError("positions of at least 0", "a negative one", do, "snapshot")
    return positions


def _step(signature: Signature) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of a step, prefill or draft-check graph: name → (dtype, dimensions)."""
    checks = signature.role == DRAFT_CHECK
    rows: tuple[int | str | None, ...] = (BATCH, TOKENS) if checks else (BATCH,)  # leading dimensions of logits
    read = signature.input_dims(*((BATCH,) if signature.role == STEP else (BATCH, TOKENS)))
    wanted_in: dict[str, Form] = {signature.input_name: (signature.input_dtype, read)}
    wanted_out: dict[str, Form] = {LOGITS: ("float32", (*rows, signature.vocab_size))}
    wanted_in |= {spec.past: (spec.dtype, spec.shape) for spec in signature.states}
    if checks:
        wanted_in[KEEP] = ("int64", (BATCH,))
    if signature.top_k is not None:
        few = (*rows, signature.top_k)
        wanted_out |= {TOP_LOGITS: ("float32", few), TOP_TOKENS: ("int64", few)}
    if signature.hidden_size is not None:
        wanted_out[HIDDEN] = ("float32", (*rows, signature.hidden_size))
    if signature.has_log_sum:
        wanted_out |= {LOG_SUM: ("float32", rows)}
    wanted_out |= {spec.present: (spec.dtype, spec.shape) for spec in signature.chained}
    return wanted_in, wanted_out


def _encoder(signature: Signature) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of an encoder graph: name → (dtype, dimensions)."""
    assert signature.source is not None
    started = [spec for spec in signature.chained if spec.name in signature.source.start_states]
    outputs: dict[str, Form] = {spec.name: (spec.dtype, spec.shape) for spec in signature.constant}
    outputs |= {spec.present: (spec.dtype, spec.shape) for spec in started}
    length = signature.source.source_length or SOURCE_LENGTH
    return {SOURCE_IDS: ("int64", (BATCH, length)), SOURCE_LENGTHS: ("int64", (BATCH,))}, outputs


def _names(wanted: Collection[str], found: Collection[str], what: str = "") -> list[str]:
    """Describe missing and unexpected names."""
    differences = {"missing": set(wanted) - set(found), "unexpected": set(found) - set(wanted)}
    return [f"{label}{what} {', '.join(sorted(names))}" for label, names in differences.items() if names]


def _agrees(wanted: Form, got: Form, batch: int | None) -> bool:
    def fits(want: int | str | None, have: int | str | None) -> bool:
        if want == BATCH and batch is not None:
            want = batch
        return have == want if isinstance(want, int) else not isinstance(have, int)

    return wanted[0] == got[0] and len(wanted[1]) == len(got[1]) and all(map(fits, wanted[1], got[1]))


def _fits(spec: StateSpec, dtype: str, shape: tuple[int, ...], letters: dict[str, int]) -> bool:
    """Whether a state has the dtype and shape of its spec; adds unknown dimensions to `letters`."""
    if dtype != spec.dtype or len(shape) != len(spec.shape):
        return False
    for want, have in zip(spec.shape, shape, strict=True):
        if isinstance(want, str) and have < (0 if want == GROWING else 1):
            return False
        if have != (letters.setdefault(want, have) if isinstance(want, str) else want):
            return False
    return True


def _show(form: Form) -> str:
    return f"{form[0]} ({', '.join('?' if d is None else str(d) for d in form[1])})"

"""Text of `t2r inspect`: properties, then tables of layers and states, in which equal rows are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from t2r_export.cli.output import parameters, table
from t2r_export.config.layer_numbers import ranges
from t2r_export.describe import Description
from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.errors import printable

LAYERS = ("layers", "mixer", "options", "feed-forward", "fold")
SOURCES = ("layers", "at the source", "options", "fold")
STATES = ("states", "layers", "dtype", "shape", "bytes")
FOR_PROGRAMS = ("metadata",)  # details that only `--json` shows


def text(description: Description) -> str:
    """Format a description as text."""
    d = description
    out = [
        f"{d.file}: a {d.kind}, {parameters(d.parameters, d.active_parameters)}, vocabulary {d.vocab_size}",
        f"reach: {d.reach}",
        printable(f"memory: {d.memory}: {d.memory_reason}"),
        f"bytes of a sequence: {d.state_bytes:,}"
        + (f" at the start, {d.growth_bytes:,} more a token" if d.growth_bytes else ""),
    ]
    if d.break_even is not None:
        out.append(f"break-even: smaller than a float32 key/value cache from {d.break_even:,} tokens on")
    for rows, head in ((d.rows, LAYERS), (d.sources, SOURCES)):
        if rows:
            out += ["", table([(ranges(numbers), *row) for row, numbers in _grouped(rows).items()], head)]
    states = _grouped([_state(spec) for spec in d.states])
    named = [(name, ranges(numbers) if numbers else "-", *row) for (name, *row), numbers in states.items()]
    out += ["", table(named, STATES), ""]
    shown = {"special tokens": d.special_tokens, **d.details}
    out += [f"{key}: {printable(_words(value))}" for key, value in shown.items() if key not in FOR_PROGRAMS]
    return "\n".join(out)


def _grouped(rows: Iterable[tuple[tuple[str, ...], int | None]]) -> dict[tuple[str, ...], list[int]]:
    """Group equal rows, with their layer numbers."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, number in rows:
        groups.setdefault(row, []).extend([] if number is None else [number])
    return groups


def _state(spec: StateSpec) -> tuple[tuple[str, ...], int | None]:
    """A row of the table of states, and the layer number at the end of the name, if any."""
    name, dot, layer = spec.name.rpartition(".")
    numbered = bool(dot) and layer.isascii() and layer.isdigit() and len(layer) < 5
    size = f"{spec.bytes(length=1):,} a token" if spec.grows else f"{spec.bytes():,}"
    shape = " × ".join(map(str, spec.shape))
    row = (printable(name if numbered else spec.name, 60), spec.dtype, shape, size)
    return row, int(layer) if numbered else None


def _words(value: Any) -> str:
    """Format plain data without JSON punctuation; nested data in parentheses."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inner(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_inner, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _inner(value: Any) -> str:
    words = _words(value)
    return f"({words})" if isinstance(value, Mapping | list | tuple) and value else words

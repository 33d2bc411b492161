"""Checks of plain config values. Each raises UserError with expected value, received value and advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from t2r_export.config.refused import why_refused
from t2r_runtime.errors import UserError, did_you_mean, printable, shown

V = TypeVar("V")

# Limits for untrusted configs, checked before allocation; far above any decoder that runs on a single machine.
MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # any one of D, ffn, heads, head size, feature size
MAX_VOCABULARY = 1 << 22
MAX_TURNED = 1 << 14  # D of sinusoidal positions, head size of rotary positions: tables have 1,024 rows of this size
LARGEST = 1e300  # limit for floats
MAX_WHOLE = 1 << 53  # limit for integers


def need(condition: bool, expected: str, received: Any, do: str) -> None:
    """Raise UserError unless the condition holds."""
    if not condition:
        raise UserError(expected, printable(received) if isinstance(received, str) else shown(received), do)


def size(name: str, value: Any, limit: int = MAX_SIZE, least: int = 1) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    need(
        whole and least <= value <= limit,
        f"{name} to be an integer from {least} to {limit}",
        shown(value),
        f"correct {name}",
    )


def choice(name: str, value: Any, known: Sequence[Any]) -> None:
    if not isinstance(value, str | int | float | None) or value not in known:  # arrays have no truth value
        expected = f"{name} to be one of {', '.join(map(str, known))}"
        raise UserError(expected, shown(value), advice(value, known, f"choose one of those for {name}"))


def entry(what: str, name: str, table: Mapping[str, V]) -> V:
    """Look up a name in a table.

    Args:
        what: the kind of entry with its article, for messages.

    Raises:
        UserError: an unknown name; lists the known ones.
    """
    if not isinstance(name, str) or name not in table:
        raise UserError(f"{what} of {', '.join(table)}", shown(name), advice(name, table, "choose one of those"))
    return table[name]


def advice(value: Any, known: Iterable[str], otherwise: str) -> str:
    """Why a known system is refused, or the nearest known name, or `otherwise`."""
    reason = why_refused(value)
    return did_you_mean(value, known, otherwise) if reason is None else f"{reason}; {otherwise}"


def finite(value: Any) -> bool:
    """Whether a value is a finite number in float64: no NaN, and no integer that would be rounded."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_WHOLE
    return whole or (isinstance(value, float) and abs(value) < LARGEST)


def number(name: str, value: Any, positive: bool = True) -> None:
    need(
        finite(value) and (value > 0 or not positive),
        f"{name} to be a finite{' positive' if positive else ''} number",
        shown(value),
        f"correct {name}",
    )


def flag(name: str, value: Any) -> None:
    need(isinstance(value, bool), f"{name} to be true or false", shown(value), f"correct {name}")


def fields(cls: type, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Copy `data` after checking that its keys are the dataclass's fields. Raises UserError otherwise."""
    need(isinstance(data, Mapping), f"{what} to be a JSON object", type(data).__name__, f"correct {what}")
    names = {f.name for f in dataclasses.fields(cls)}
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    unknown, missing = sorted(set(data) - names), sorted(required - set(data))
    need(
        not unknown and not missing,
        f"{what} to have the keys {', '.join(sorted(names))}",
        f"missing {shown(missing) if missing else 'none'}, unexpected {shown(unknown) if unknown else 'none'}",
        advice(unknown[0] if unknown else None, names, f"correct {what}, or read it with the version that wrote it"),
    )
    return dict(data)

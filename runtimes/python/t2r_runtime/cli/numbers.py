"""Bounds of integer options, so that sizes computed from them do not overflow."""

from __future__ import annotations

from typing import Any

import click
from click.types import IntParamType

MOST = (1 << 31) - 1  # the product of two fits into 64 bits
MOST_SEED = (1 << 63) - 1


class _Bounded:
    """Mixin of click's integer types: bounds the absolute value by `most`."""

    most = MOST

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)  # type: ignore[misc]
        if not -self.most <= number <= self.most:
            self.fail(f"The largest number here is {self.most}.", param, ctx)  # type: ignore[attr-defined]
        return number


class Integer(_Bounded, IntParamType):
    """An integer."""


class Range(_Bounded, click.IntRange):
    """An integer in a range."""


def bound(command: click.Command) -> None:
    """Bound every integer option of a command."""
    for parameter in command.params:
        kind = parameter.type
        if isinstance(kind, click.IntRange):
            parameter.type = Range(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
        elif isinstance(kind, IntParamType):
            parameter.type = Integer()
        if parameter.name == "seed":
            parameter.type.most = MOST_SEED  # type: ignore[attr-defined]

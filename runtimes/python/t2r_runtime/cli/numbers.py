"""Number options: finite and bounded, so that results computed from them are too; other values raise UserError."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import FloatParamType, IntParamType

from t2r_runtime.errors import UserError, shown

MOST = (1 << 31) - 1  # the product of two fits into 64 bits
MOST_SEED = (1 << 63) - 1


class _Number:
    """Mixin of click's number types: raises UserError, also for NaN, infinity and values beyond ± `most`."""

    what = "an integer"
    most: float = MOST

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = None
        try:
            number = super().convert(value, param, ctx)  # type: ignore[misc]
            if abs(number) <= self.most and abs(number) < math.inf:  # false for NaN
                return number
        except click.BadParameter:
            pass
        bounds = self._bounds() if number is not None or hasattr(self, "min") else ""
        name = param.opts[0] if isinstance(param, click.Option) else "the value"
        program = "t2r" if ctx is None else ctx.command_path
        raise UserError(f"{name} to be {self.what}{bounds}", shown(value), f"see `{program} --help`")

    def _bounds(self) -> str:
        least, most = getattr(self, "min", None), getattr(self, "max", None)
        if self.most < math.inf:
            if least is None and most is None:
                return f" of at most {self.most} in magnitude"
            return f" from {-self.most if least is None else least} to {self.most if most is None else most}"
        return "" if least is None else f" {'above' if getattr(self, 'min_open', False) else 'of at least'} {least}"


class Integer(_Number, IntParamType):
    """An integer."""


class Range(_Number, click.IntRange):
    """An integer in a range."""


class Real(_Number, FloatParamType):
    """A number."""

    what, most = "a finite number", math.inf


class RealRange(_Number, click.FloatRange):
    """A number in a range."""

    what, most = "a finite number", math.inf


def bound(command: click.Command) -> None:
    """Bound every number option of a command."""
    for parameter in command.params:
        kind = parameter.type
        if isinstance(kind, click.IntRange | click.FloatRange):
            bounded = Range if isinstance(kind, click.IntRange) else RealRange
            parameter.type = bounded(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)  # type: ignore[arg-type]
        elif isinstance(kind, IntParamType | FloatParamType):
            parameter.type = Integer() if isinstance(kind, IntParamType) else Real()
        if parameter.name == "seed":
            parameter.type.most = MOST_SEED  # type: ignore[attr-defined]

"""Generation options of decoders and translators: defaults and ranges of the contract's two tables.

A value is the caller's (t2r_runtime.Sampling, t2r_runtime.Beam), else the graph's (`t2r.generation`), else the default
here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from t2r_runtime.checks import LARGEST, is_number, require_kind, require_value
from t2r_runtime.errors import UserError

LARGEST_PENALTY = 100.0
LONGEST_NGRAM = 64  # tokens
STEEPEST = 10.0  # largest absolute value of length_penalty
MOST = 1 << 31  # exclusive bound of integers in beam options and graph metadata

Given = TypeVar("Given", bound="_Options")


def _whole(least: int, most: int = MOST - 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _real(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and least <= value <= most


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {  # whether a value is valid, and what is expected
    "temperature": (_real(0, sys.float_info.max), "a temperature of 0 or more"),
    "top_k": (_whole(0, LARGEST), "top_k from 0 (no limit) to 2^63 - 1"),
    "top_p": (lambda value: is_number(value) and 0 < value <= 1, "top_p above 0 and at most 1 (no limit)"),
    "min_p": (_real(0, 1), "min_p from 0 (no limit) to 1"),
    "repetition_penalty": (
        _real(1 / LARGEST_PENALTY, LARGEST_PENALTY),
        f"a repetition_penalty from {1 / LARGEST_PENALTY} to {LARGEST_PENALTY:.0f} (1 is none)",
    ),
    "no_repeat_ngram": (_whole(0, LONGEST_NGRAM), f"no_repeat_ngram from 0 (no limit) to {LONGEST_NGRAM}"),
    "n_best": (_whole(1), "n_best of at least 1"),
    "width": (_whole(1), "width of at least 1"),
    "min_tokens": (_whole(0), "min_tokens of at least 0"),
    "max_tokens": (lambda value: value is None or _whole(1)(value), "max_tokens of at least 1"),
    "length_penalty": (_real(-STEEPEST, STEEPEST), f"a length_penalty from {-STEEPEST} to {STEEPEST}"),
    "early_stopping": (
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "never"),
        'early_stopping True, False or "never"',
    ),
    "forced_end": (lambda value: isinstance(value, bool), "forced_end True or False"),
    "copy": (lambda value: isinstance(value, bool), "copy True or False"),
}


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The penalties, common to both tables. Raises UserError if a value is out of range."""

    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            valid, expected = CHECKS[name]
            value = getattr(self, name)
            require_value(valid(value), expected, value, "sampling")

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on earlier tokens."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(_Options):
    """Resolved options of t2r_runtime.Sampling."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def limit(self) -> int:
        """How many of the largest logits suffice for a choice; 0 means all, which penalties require."""
        if self.looks_back:
            return 0
        return 1 if self.temperature == 0 else self.top_k


@dataclass(frozen=True, kw_only=True)
class BeamOptions(_Options):
    """Resolved options of t2r_runtime.Beam."""

    width: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_tokens: int | None = None
    min_tokens: int = 0
    forced_end: bool = True
    copy: bool = True
    n_best: int = 1


DECODER = tuple(SamplingOptions.__dataclass_fields__)  # options of a graph
TRANSLATOR = tuple(name for name in BeamOptions.__dataclass_fields__ if name not in ("n_best", "copy"))


def resolved(table: type[Given], given: object, generation: Mapping[str, Any] | None) -> Given:
    """Resolve every option of `table`.

    Args:
        given: an object with the caller's options as attributes; None means not given.
        generation: the graph's options, if it has any.
    """
    require_kind(generation, (Mapping, type(None)), "a mapping or None as generation", "sampling")
    graph = generation or {}
    asked = {field.name: getattr(given, field.name) for field in dataclasses.fields(table)}
    known = {name: graph.get(name) if value is None else value for name, value in asked.items()}
    return table(**{name: value for name, value in known.items() if value is not None})


def is_generation(value: object, translates: bool) -> bool:
    """Whether a graph may have these options: a mapping of known names to values in range."""
    if not isinstance(value, Mapping) or not value.keys() <= set(TRANSLATOR if translates else DECODER):
        return False
    if any(one is None or (type(one) is int and one >= MOST) for one in value.values()):
        return False
    try:
        (BeamOptions if translates else SamplingOptions)(**value)
    except UserError:
        return False
    return True

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


def _option(default: Any, valid: Callable[[Any], bool], expected: str, text: str = "") -> Any:
    """A field with its rule: whether a value is valid, what is expected, and the help text of the command line."""
    return dataclasses.field(default=default, metadata={"valid": valid, "expected": expected, "help": text})


def _flag(name: str) -> Any:
    return _option(True, lambda value: isinstance(value, bool), f"{name} True or False")


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The penalties, common to both tables. Raises UserError if a value is out of range."""

    repetition_penalty: float = _option(
        1.0,
        _real(1 / LARGEST_PENALTY, LARGEST_PENALTY),
        f"a repetition_penalty from {1 / LARGEST_PENALTY} to {LARGEST_PENALTY:.0f} (1 is none)",
        "Divide positive and multiply negative logits of earlier tokens by this factor.",
    )
    no_repeat_ngram: int = _option(
        0,
        _whole(0, LONGEST_NGRAM),
        f"no_repeat_ngram from 0 (no limit) to {LONGEST_NGRAM}",
        "Let no n-gram of N tokens occur twice; 0 is no limit.",
    )

    def __post_init__(self) -> None:
        for name, field in self.__dataclass_fields__.items():
            value = getattr(self, name)
            require_value(field.metadata["valid"](value), field.metadata["expected"], value, "sampling")

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on earlier tokens."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(_Options):
    """Resolved options of t2r_runtime.Sampling, in order of application."""

    temperature: float = _option(
        1.0, _real(0, sys.float_info.max), "a temperature of 0 or more", "Sampling temperature; 0 is greedy."
    )
    top_k: int = _option(
        0,
        _whole(0, LARGEST),
        "top_k from 0 (no limit) to 2^63 - 1",
        "Sample from the K most likely tokens; 0 is no limit.",
    )
    top_p: float = _option(
        1.0,
        lambda value: is_number(value) and 0 < value <= 1,
        "top_p above 0 and at most 1 (no limit)",
        "Sample from the smallest set of tokens whose probabilities sum to at least P.",
    )
    min_p: float = _option(
        0.0,
        _real(0, 1),
        "min_p from 0 (no limit) to 1",
        "Sample from tokens at least P times as likely as the most likely one; 0 is no limit.",
    )

    @property
    def limit(self) -> int:
        """How many of the largest logits suffice for a choice; 0 means all, which penalties require."""
        if self.looks_back:
            return 0
        return 1 if self.temperature == 0 else self.top_k


@dataclass(frozen=True, kw_only=True)
class BeamOptions(_Options):
    """Resolved options of t2r_runtime.Beam."""

    width: int = _option(4, _whole(1), "width of at least 1")
    length_penalty: float = _option(1.0, _real(-STEEPEST, STEEPEST), f"a length_penalty from {-STEEPEST} to {STEEPEST}")
    early_stopping: bool | str = _option(
        False,
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "never"),
        'early_stopping True, False or "never"',
    )
    max_tokens: int | None = _option(None, lambda value: value is None or _whole(1)(value), "max_tokens of at least 1")
    min_tokens: int = _option(0, _whole(0), "min_tokens of at least 0")
    forced_end: bool = _flag("forced_end")
    copy: bool = _flag("copy")
    n_best: int = _option(1, _whole(1), "n_best of at least 1")


PENALTIES = tuple(_Options.__dataclass_fields__)
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
    chosen = {field.name: getattr(given, field.name) for field in dataclasses.fields(table)}
    known = {name: graph.get(name) if value is None else value for name, value in chosen.items()}
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

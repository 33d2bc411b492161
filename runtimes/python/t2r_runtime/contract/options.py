"""The options of the contract's two tables, all of them known: what the caller gives, else the graph's
(`t2r.generation`), else the table's default. t2r_runtime.Sampling and t2r_runtime.Beam are what a caller gives.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from t2r_runtime.checks import LARGEST, is_number, require_kind, require_value
from t2r_runtime.errors import UserError

LARGEST_PENALTY = 100.0
LONGEST_NGRAM = 64  # tokens
STEEPEST = 10.0  # the largest exponent of a length
MOST = 1 << 31  # above the whole numbers of a search, and of a graph's metadata
DECODER = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram")
TRANSLATOR = (
    "width",
    "max_tokens",
    "min_tokens",
    "length_penalty",
    "early_stopping",
    "forced_end",
    "repetition_penalty",
    "no_repeat_ngram",
)

Given = TypeVar("Given", bound="_LooksBack")


@dataclass(frozen=True, kw_only=True)
class _LooksBack:
    """The two penalties, which both tables have."""

    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        require_value(
            is_number(self.repetition_penalty) and 1 / LARGEST_PENALTY <= self.repetition_penalty <= LARGEST_PENALTY,
            f"a repetition_penalty from {1 / LARGEST_PENALTY} to {LARGEST_PENALTY:.0f} (1 is none)",
            self.repetition_penalty,
            "sampling",
        )
        require_value(
            type(self.no_repeat_ngram) is int and 0 <= self.no_repeat_ngram <= LONGEST_NGRAM,
            f"no_repeat_ngram from 0 (no limit) to {LONGEST_NGRAM}",
            self.no_repeat_ngram,
            "sampling",
        )

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on what has occurred before."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(_LooksBack):
    """How the tokens of a text are chosen, with the table's defaults; see t2r_runtime.Sampling.

    Raises:
        UserError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        temperature, top_k, top_p, min_p = self.temperature, self.top_k, self.top_p, self.min_p
        require_value(
            is_number(temperature) and 0 <= temperature <= sys.float_info.max,
            "a temperature of 0 or more",
            temperature,
            "sampling",
        )
        require_value(
            type(top_k) is int and 0 <= top_k <= LARGEST, "top_k from 0 (no limit) to 2^63 - 1", top_k, "sampling"
        )
        require_value(is_number(top_p) and 0 < top_p <= 1, "top_p above 0 and at most 1 (no limit)", top_p, "sampling")
        require_value(is_number(min_p) and 0 <= min_p <= 1, "min_p from 0 (no limit) to 1", min_p, "sampling")
        super().__post_init__()

    @property
    def limit(self) -> int:
        """How many of the largest logits are enough to choose from; 0 is all of them, as where penalties come first."""
        if self.looks_back:
            return 0
        return 1 if self.temperature == 0 else self.top_k


@dataclass(frozen=True, kw_only=True)
class BeamOptions(_LooksBack):
    """How a translation is searched, with the table's defaults; see t2r_runtime.Beam.

    Raises:
        UserError: a value out of range.
    """

    width: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_tokens: int | None = None
    min_tokens: int = 0
    forced_end: bool = True
    n_best: int = 1

    def __post_init__(self) -> None:
        whole = {"n_best": 1, "width": 1, "min_tokens": 0, **({} if self.max_tokens is None else {"max_tokens": 1})}
        for name, least in whole.items():
            value = getattr(self, name)
            require_value(
                type(value) is int and least <= value < MOST, f"{name} of at least {least}", value, "sampling"
            )
        steep = self.length_penalty
        require_value(
            is_number(steep) and abs(steep) <= STEEPEST,
            f"a length_penalty from {-STEEPEST} to {STEEPEST}",
            steep,
            "sampling",
        )
        stopping = self.early_stopping
        require_value(
            isinstance(stopping, bool) or (isinstance(stopping, str) and stopping == "never"),
            'early_stopping True, False or "never"',
            stopping,
            "sampling",
        )
        require_value(isinstance(self.forced_end, bool), "forced_end True or False", self.forced_end, "sampling")
        super().__post_init__()


def resolved(table: type[Given], given: object, generation: Mapping[str, Any] | None) -> Given:
    """Every option of `table`.

    Args:
        given: has them as attributes; None is one that the caller does not give.
        generation: the graph's; None: it has none.
    """
    require_kind(generation, (Mapping, type(None)), "a mapping or None as generation", "sampling")
    graph = generation or {}
    asked = {field.name: getattr(given, field.name) for field in dataclasses.fields(table)}
    known = {name: graph.get(name) if value is None else value for name, value in asked.items()}
    return table(**{name: value for name, value in known.items() if value is not None})


def is_generation(value: object, translates: bool) -> bool:
    """Whether a graph may have this as its options: a mapping of known names to values in range."""
    if not isinstance(value, Mapping) or not value.keys() <= set(TRANSLATOR if translates else DECODER):
        return False
    if any(one is None or (type(one) is int and one >= MOST) for one in value.values()):
        return False
    try:
        (BeamOptions if translates else SamplingOptions)(**value)
    except UserError:
        return False
    return True

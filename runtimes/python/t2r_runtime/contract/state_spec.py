"""The recurrent states of a graph: names, dtypes and shapes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass

from t2r_runtime.checks import LARGEST, require_kind
from t2r_runtime.errors import UserError, printable, shown

PAST = "past_"
PRESENT = "present_"
SOURCE = "source_"  # prefix of the names of constant states
POSITION = "position"  # state int32 (B,): number of tokens read
HIDDEN_STATE = "hidden"  # state float32 (B, D) of a draft head: what the head read before
ADAPTER = "adapter"  # state int32 (B,): the number of each row's adapter, 0 for none
SOURCE_LENGTH_STATE = "source_length"  # constant state int32 (B,): length of each source
BATCH = "B"  # batch size
GROWING = "T"  # dimension that starts at 0 and grows by 1 per step
TOKENS = "N"  # number of tokens of a run
SOURCE_LENGTH = "M"  # length of the longest source
DTYPES = ("float32", "float16", "int8", "int32", "int64")
MAX_STATE_BYTES = 1 << 31  # default limit of all states at batch 1, as graphs may be untrusted
MAX_DIMENSIONS = 16  # of a state


@dataclass(frozen=True)
class StateSpec:
    """A recurrent state: graph input `past_<name>` and output `present_<name>`.

    Attributes:
        name: name of the state.
        dtype: one of DTYPES.
        shape: "B" (batch), then integers and at most one "T" (a cache that grows by one per step).
        initial: value of all elements before the first token.
        constant: whether the state is an input only, such as the encoded source. The input's name is `name`, which
            starts with "source_", and instead of "T" the shape may have one "M", the source's length.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    initial: float = 0.0
    constant: bool = False

    def __post_init__(self) -> None:
        first, *shape = self.shape if isinstance(self.shape, tuple) and self.shape else (None,)
        free, prefix = (SOURCE_LENGTH, SOURCE) if self.constant is True else (GROWING, "")
        sizes_ok = all(d == free if isinstance(d, str) else type(d) is int and 0 < d <= LARGEST for d in shape)
        dims_ok = first == BATCH and len(shape) < MAX_DIMENSIONS and sizes_ok
        named = isinstance(self.name, str) and self.name.startswith(prefix) and self.name
        typed = isinstance(self.dtype, str) and self.dtype in DTYPES and isinstance(self.constant, bool)
        if not (named and typed and dims_ok and shape.count(free) <= 1):
            expected = (
                f"a state with a name, a dtype of {', '.join(DTYPES)}, the dimensions B, then positive ones or one T "
                "(if constant: a name that starts with source_, and one M instead of T)"
            )
            raise UserError(expected, shown(self), "export the graph again", "metadata")

    @property
    def past(self) -> str:
        """Name of the graph's input."""
        return self.name if self.constant else PAST + self.name

    @property
    def present(self) -> str:
        """Name of the graph's output; constant states have none."""
        assert not self.constant, self.name
        return PRESENT + self.name

    @property
    def grows(self) -> bool:
        """Whether it is a cache that grows with each step."""
        return GROWING in self.shape

    def dims(self, batch: int, length: int = 0, source: int = 1) -> tuple[int, ...]:
        """The shape with letters replaced by numbers."""
        letters = {BATCH: batch, GROWING: length, SOURCE_LENGTH: source}
        return tuple(letters[d] if isinstance(d, str) else d for d in self.shape)

    def source_length(self, shape: tuple[int, ...]) -> int:
        """M of a state of that shape; 1 if it has none."""
        return shape[self.shape.index(SOURCE_LENGTH)] if SOURCE_LENGTH in self.shape else 1

    def bytes(self, batch: int = 1, length: int = 0, source: int = 1) -> int:
        """Size in bytes, with a cache of `length` tokens and sources of length `source`."""
        for name, value in (("batch", batch), ("length", length), ("source", source)):
            require_kind(value, numbers.Integral, f"an integer as {name}", "batch")
        size = {"float32": 4, "float16": 2, "int8": 1, "int32": 4, "int64": 8}[self.dtype]
        return size * math.prod(self.dims(batch, length, source))


def require_bounded(states: Iterable[StateSpec], most: int = MAX_STATE_BYTES) -> None:
    """Raise UserError if states exceed `most` bytes at batch 1, with caches of one token."""
    sizes = {spec.name: spec.bytes(batch=1, length=1) for spec in states}
    if (total := sum(sizes.values())) > most:
        name = max(sizes, key=sizes.__getitem__)
        received = f"{total:,} bytes, {printable(name, 50)} alone {sizes[name]:,}"
        do = "check where this file is from, or raise max_state_bytes in Python"
        raise UserError(f"states of at most {most:,} bytes per sequence", received, do, "metadata")

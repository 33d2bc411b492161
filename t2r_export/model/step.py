"""The context shared by all layers in one call: operators, positions, rotations.

Values that depend only on the position are computed once for all layers, so that graphs contain them once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from t2r_export.config.attention import PositionScale
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.turns import Rotation

R = TypeVar("R")
EMBEDDING = "embedding"  # lent to all layers: input rows (N, D) of the first layer


class Step(Generic[T]):
    """The context of one step, or of T tokens.

    Args:
        ops: operators that compute or record.
        start: (B,) int32, number of tokens read before; None if the model counts no positions.
        ropes: the model's rotations, which layers index by number.
        wrap: modulus of absolute positions; None: no wrapping.
        lengths: (B,) integers, source lengths, if a layer needs them.
    """

    def __init__(
        self,
        ops: Ops[T],
        start: T | None,
        ropes: Sequence[Positions],
        wrap: int | None = None,
        lengths: T | None = None,
    ) -> None:
        self.ops, self.ropes, self.wrap, self.lengths = ops, ropes, wrap, lengths
        self._start = start
        self._shared: dict[Hashable, Any] = {}
        self._lent: dict[str, T] = {}

    @property
    def start(self) -> T:
        """(B,) int32, tokens read before these."""
        assert self._start is not None, "layers that use positions must set needs_position"
        return self._start

    @cached_property
    def _advanced(self) -> tuple[T, T]:
        return self.ops.advance(self.start)

    @property
    def position(self) -> T:
        """(B, T) int32, the position of each token."""
        return self._advanced[0]

    @cached_property
    def place(self) -> T:
        """(B, T) int32, absolute positions: `position`, modulo `wrap` if set."""
        return self.position if self.wrap is None else self.ops.remainder(self.position, self.wrap)

    @property
    def after(self) -> T:
        """(B,) int32, tokens read after these."""
        return self._advanced[1]

    @cached_property
    def numbers(self) -> T:
        """(B, 1, T, 1) float32, the positions."""
        return self.ops.reshape(self.ops.cast(self.position, "float32"), (0, 1, -1, 1))

    def query_scale(self, scale: PositionScale) -> T:
        """(B, 1, T, 1) float32, the scale of q at the positions."""

        def compute() -> T:
            ops = self.ops
            whole = ops.sub(self.position, ops.remainder(self.position, scale.length))
            lengths = ops.div(ops.reshape(ops.cast(whole, "float32"), (0, 1, -1, 1)), float(scale.length))
            return ops.add(ops.mul(ops.log(ops.add(lengths, 1.0)), scale.factor), 1.0)

        return self.shared(scale, compute)

    def hidden(self, source: T) -> T:
        """Padding mask (B, 1, 1, M) of source keys (B, G, M, d): 1 for padding, else 0."""

        def compute() -> T:
            assert self.lengths is not None, "layers that use lengths must set needs_lengths"
            return self.ops.padding_mask(source, self.lengths)

        return self.shared("hidden", compute)

    def absolute_rotation(self, rope: int) -> Rotation[T]:
        """cos and sin (B, 1, T, F) at `place`."""
        if self.wrap is None:
            return self.rotation(rope)
        return self.shared(("place", rope), lambda: self.ropes[rope].rotate(self.place, self.ops))

    def rotation_to_place(self, rope: int, behind: int) -> Rotation[T]:
        """The rotation that moves keys `behind` tokens back from their position to their `place`."""

        def compute() -> Rotation[T]:
            ops, wrap = self.ops, self.wrap
            assert wrap is not None
            position = ops.sub(self.position, behind)
            position = ops.sub(position, ops.minimum(position, 0))  # clamp to 0
            cos, sin = self.ropes[rope].rotate(ops.sub(position, ops.remainder(position, wrap)), ops)
            back = 1.0 / self.ropes[rope].magnitude  # the keys already have this factor
            return Rotation(cos if back == 1.0 else ops.mul(cos, back), ops.mul(sin, -back))

        return self.shared(("to place", rope, behind), compute)

    def rotation(self, rope: int, last: int | None = None, ahead: int = 0) -> Rotation[T]:
        """cos and sin (B, 1, T, F) at the positions, shifted by `ahead` or clamped to `last`."""

        def compute() -> Rotation[T]:
            position = self.position if last is None else self.ops.minimum(self.position, last)
            return self.ropes[rope].rotate(self.ops.add(position, ahead) if ahead else position, self.ops)

        return self.shared(("rotation", rope, last, ahead), compute)

    def rotation_between(self, rope: int, start: int, stop: int) -> Rotation[T]:
        """cos and sin (stop - start, F) at constant positions."""
        rotate = self.ropes[rope].rotate_known
        return self.shared(("rotation", rope, start, stop), lambda: rotate(start, stop, self.ops, f"rope_{rope}"))

    def shared(self, key: Hashable, compute: Callable[[], R]) -> R:
        """The value for `key`, computed on first use."""
        if key not in self._shared:
            self._shared[key] = compute()
        value: R = self._shared[key]
        return value

    def copy(self) -> Step[T]:
        """A copy of the context; values computed or lent later in either are not shared."""
        copied = copy.copy(self)
        copied._shared, copied._lent = dict(self._shared), dict(self._lent)
        return copied

    def take(self, other: Step[T]) -> None:
        """Take over the values of a copy."""
        vars(self).update(vars(other))

    def lend(self, name: str, value: T) -> None:
        """Store a value for the layers above; replaces an earlier value of this name."""
        self._lent[name] = value

    def borrowed(self, name: str) -> T:
        """The value that a layer below has lent; configs ensure that it exists."""
        return self._lent[name]

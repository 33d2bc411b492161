"""What every layer may ask while tokens are read: operators, tokens seen, rotations. One object, made by the model.

Whatever depends on the position alone is computed once and shared by all layers: a graph of 30 layers holds it once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Generic

from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.turns import Rotation


class Step(Generic[T]):
    """The context of one step, or of one sequence of T tokens.

    Args:
        ops: the operators to compute with, or to record with.
        start: (B,) int32, tokens that each sequence has read before; None in a model that counts none.
        ropes: the model's rotations; a layer names its own by number.
        wrap: the number that absolute positions are counted modulo; None where they are not.
        lengths: (B,) integers, tokens of each source, where a layer asks for them.
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
        assert self._start is not None, "a layer that asks for the position says so (`needs_position`)"
        return self._start

    @cached_property
    def _advanced(self) -> tuple[T, T]:
        return self.ops.advance(self.start)

    @property
    def position(self) -> T:
        """(B, T) int32, of each token."""
        return self._advanced[0]

    @cached_property
    def place(self) -> T:
        """(B, T) int32, the absolute position of each token: `position`, modulo `wrap` where there is one."""
        return self.position if self.wrap is None else self.ops.remainder(self.position, self.wrap)

    @property
    def after(self) -> T:
        """(B,) int32, tokens read after these."""
        return self._advanced[1]

    @cached_property
    def numbers(self) -> T:
        """(B, 1, T, 1) float32, the position of each token."""
        return self.ops.reshape(self.ops.cast(self.position, "float32"), (0, 1, -1, 1))

    def hidden(self, source: T) -> T:
        """For keys of a source (B, G, M, d): 1 where a row of the batch has no token any more, else 0, (B, 1, 1, M)."""

        def compute() -> T:
            assert self.lengths is not None, "the layer has said that it asks for them"
            return self.ops.padding_mask(source, self.lengths)

        found: T = self.shared("hidden", compute)
        return found

    def absolute_rotation(self, rope: int) -> Rotation[T]:
        """cos and sin (B, 1, T, F) at each token's `place`, for what meets nothing that was rotated at another."""
        if self.wrap is None:
            return self.rotation(rope)
        found: Rotation[T] = self.shared(("place", rope), lambda: self.ropes[rope].rotate(self.place, self.ops))
        return found

    def rotation_to_place(self, rope: int, behind: int) -> Rotation[T]:
        """What brings keys that stand so many tokens behind, rotated at their position, to their `place`."""

        def compute() -> Rotation[T]:
            ops, wrap = self.ops, self.wrap
            assert wrap is not None
            position = ops.sub(self.position, behind)
            position = ops.sub(position, ops.minimum(position, 0))  # before the first token nothing stands
            cos, sin = self.ropes[rope].rotate(ops.sub(position, ops.remainder(position, wrap)), ops)
            back = 1.0 / self.ropes[rope].magnitude  # the keys have been multiplied by it
            return Rotation(cos if back == 1.0 else ops.mul(cos, back), ops.mul(sin, -back))

        found: Rotation[T] = self.shared(("to place", rope, behind), compute)
        return found

    def rotation(self, rope: int, last: int | None = None, ahead: int = 0) -> Rotation[T]:
        """cos and sin (B, 1, T, F) at each token's position, so many tokens ahead of it, or at `last` past it."""

        def compute() -> Rotation[T]:
            position = self.position if last is None else self.ops.minimum(self.position, last)
            return self.ropes[rope].rotate(self.ops.add(position, ahead) if ahead else position, self.ops)

        found: Rotation[T] = self.shared(("rotation", rope, last, ahead), compute)
        return found

    def rotation_between(self, rope: int, start: int, stop: int) -> Rotation[T]:
        """cos and sin (stop - start, F) at positions known beforehand."""
        found: Rotation[T] = self.shared(
            ("rotation", rope, start, stop),
            lambda: self.ropes[rope].rotate_known(start, stop, self.ops, f"rope_{rope}"),
        )
        return found

    def shared(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, computed by the first layer that asks for `key`."""
        if key not in self._shared:
            self._shared[key] = compute()
        return self._shared[key]

    def lend(self, name: str, value: T) -> None:
        """Leave something for the layers above; the last that was lent under a name is what they get."""
        self._lent[name] = value

    def borrowed(self, name: str) -> T:
        """What a layer below has lent under this name; the model's config has checked that there is one."""
        return self._lent[name]

"""Stored rows of keys and values: float32, or integers of 8 bits with a scale per head and token.

With 8 bits, row x of a head is stored as q = round(x / s), s = max|x| / 127, and read as q s (symmetric quantization
with absolute maxima, Dettmers et al. 2022, arXiv 2208.07339, section 2.1, here of each head and token). Parallel forms
read the rounded rows too, so all forms compute the same function. In training the rounding has the gradient of the
identity (Bengio et al. 2013, arXiv 1308.3432).
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.model.ops import Ops, State, T
from t2r_runtime.contract.state_spec import BATCH, StateSpec

LEVELS = 127.0
LEAST = 1e-20  # of a scale: a row of zeros is stored as zeros


@dataclass(frozen=True)
class Rows:
    """Args: bits: 32 (float32) or 8 of each number."""

    bits: int = 32

    def state_spec(self, name: str, heads: int, count: int | str, size: int) -> list[StateSpec]:
        """The states of `count` rows: `name` (B, G, count, d), and with 8 bits `name`_scale (B, G, count, 1)."""
        if self.bits == 32:
            return [StateSpec(name, "float32", (BATCH, heads, count, size))]
        return [
            StateSpec(name, "int8", (BATCH, heads, count, size)),
            StateSpec(f"{name}_scale", "float32", (BATCH, heads, count, 1)),
        ]

    def stored(self, name: str, x: T, ops: Ops[T]) -> tuple[State[T], T]:
        """Rows x (B, G, T, d) as they are stored, by the names of `state_spec`, and as they are read."""
        if self.bits == 32:
            return {name: x}, x
        largest = ops.sqrt(ops.reduce_max(ops.mul(x, x)))
        scale = ops.maximum(ops.div(largest, LEVELS), LEAST)
        arrays = {name: ops.to_int8(ops.div(x, scale)), f"{name}_scale": scale}
        return arrays, ops.straight_through(self.read(name, arrays, ops), x)

    def read(self, name: str, arrays: State[T], ops: Ops[T]) -> T:
        """Rows (B, G, T, d) of arrays as `stored` returns them."""
        if self.bits == 32:
            return arrays[name]
        return ops.mul(ops.cast(arrays[name], "float32"), arrays[f"{name}_scale"])

    def joined(self, name: str, state: State[T], new: State[T], read: T, ops: Ops[T]) -> tuple[State[T], T]:
        """Earlier rows and new ones, which `stored` returned: as they are stored, and as they are read."""
        arrays = {part: ops.concat([state[part], rows], axis=2) for part, rows in new.items()}
        if self.bits == 32 or not ops.many:
            return arrays, self.read(name, arrays, ops)
        return arrays, ops.concat([self.read(name, state, ops), read], axis=2)  # new rows keep their gradients

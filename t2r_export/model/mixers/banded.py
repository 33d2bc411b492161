"""Attention over a bounded number of previous tokens.

Steps use a buffer of the last tokens, oldest first, which `append` shifts by one. Sequences are split into chunks whose
queries see their own chunk and the previous chunks that cover a window: memory and time are linear in the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2r_export.model.ops import MASKED, Ops, T
from t2r_export.model.positions.turns import apply_rope
from t2r_export.model.step import Step

CHUNK = 32  # tokens; short prompts are padded to it, long prompts have a batch of chunks


def append(buffer: T, new: T, ops: Ops[T]) -> tuple[T, T]:
    """Append `new` (B, G, 1, d) to the buffer (B, G, W, d); returns the evicted entry and the new buffer."""
    length = buffer.shape[2]
    if length == 1:
        return buffer, new
    evicted, rest = ops.split(buffer, [1, length - 1], axis=2)
    return evicted, ops.concat([rest, new], axis=2)


def rotated_buffer(q: T, keys: T, rope: int, step: Step[T]) -> tuple[T, T]:
    """Rotate q (B, H, 1, d) at position 0 and buffered keys (B, G, W, d) at negative positions."""
    keys = apply_rope(keys, step.rotation_between(rope, 1 - keys.shape[2], 1), step.ops)
    if step.ropes[rope].magnitude != 1.0:  # otherwise the identity
        q = apply_rope(q, step.rotation_between(rope, 0, 1), step.ops)
    return q, keys


def empty_slot_mask(valid_from: T | float, seen: T | float, ops: Ops[T]) -> T:
    """1 where valid_from > seen, else 0. Integers as floats, broadcast."""
    missing = ops.sub(valid_from, seen)
    return ops.sub(ops.relu(missing), ops.relu(ops.sub(missing, 1.0)))


def attend(
    q: T, keys: T, values: T, ops: Ops[T], bias: T | None = None, softcap: float | None = None
) -> tuple[T, T, T]:
    """Softmax attention without scaling.

    Args:
        q: (…, rows, d).
        keys, values: (…, n, d).
        bias: (…, rows, n), added to the scores.
        softcap: of the scores, see `Ops.soft_cap`.

    Returns:
        Output (…, rows, d), scores and weights (…, rows, n).
    """
    scores = products(q, keys, ops, softcap)
    return weigh(scores if bias is None else ops.add(scores, bias), values, ops)


def products(q: T, keys: T, ops: Ops[T], softcap: float | None) -> T:
    """The scores of `attend` without a bias."""
    return ops.soft_cap(ops.matmul(q, transposed(keys, ops)), softcap)


def weigh(scores: T, values: T, ops: Ops[T]) -> tuple[T, T, T]:
    """The results of `attend` from scores and values."""
    weights = ops.softmax(scores)
    return ops.matmul(weights, values), scores, weights


def transposed(x: T, ops: Ops[T]) -> T:
    """x with its last two axes swapped."""
    axes = list(range(len(x.shape)))
    return ops.transpose(x, [*axes[:-2], axes[-1], axes[-2]])


@dataclass(frozen=True)
class Band:
    """A window of W tokens over chunks of C tokens; it covers J previous chunks.

    Each chunk's queries see L = (J + 1) · C keys; query c is at key index J·C + c.

    Args:
        dilation, local: a query sees the last `local` tokens, and those at distances divisible by `dilation`.
    """

    window: int
    dilation: int = 1
    local: int = 1

    @property
    def chunk(self) -> int:
        return min(self.window, CHUNK)

    @property
    def before(self) -> int:
        return -(-self.window // self.chunk)

    @property
    def length(self) -> int:
        return (self.before + 1) * self.chunk

    def keys(self, past: T, new: T, ops: Ops[T]) -> T:
        """Buffer (B, G, W, d) and new tokens (B, G, T, d) -> the keys of each chunk (B, G, N, L, d)."""
        reach = self.before * self.chunk
        front = ops.pad_front(past, reach - self.window) if reach > self.window else past
        heads, size = front.shape[1], front.shape[3]
        front = ops.reshape(front, (0, heads, self.before, self.chunk, size))
        chunks = ops.concat([front, ops.blocks(new, self.chunk)], axis=2)  # (B, G, J + N, C, d)
        shifted = [
            ops.drop_last(ops.slice_from(chunks, j), self.before - j) if j < self.before else ops.slice_from(chunks, j)
            for j in range(self.before + 1)
        ]
        return ops.concat(shifted, axis=3)

    def queries(self, q: T, kv_heads: int, ops: Ops[T]) -> T:
        """q (B, H, T, d) -> (B, G, N, R·C, d): the R query heads of a kv head as rows of one product."""
        H, d = q.shape[1], q.shape[3]
        q = ops.blocks(q, self.chunk)  # (B, H, N, C, d)
        if kv_heads == H:
            return q
        q = ops.reshape(q, (0, kv_heads, H // kv_heads, -1, self.chunk, d))
        return ops.reshape(ops.transpose(q, (0, 1, 3, 2, 4, 5)), (0, kv_heads, -1, H // kv_heads * self.chunk, d))

    def outputs(self, y: T, heads: int, ops: Ops[T]) -> T:
        """Inverse of `queries`: y (B, G, N, R·C, d) -> (B, H, T, d)."""
        G, d = y.shape[1], y.shape[4]
        if heads != G:
            y = ops.reshape(y, (0, G, -1, heads // G, self.chunk, d))
            y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), (0, heads, -1, self.chunk, d))
        return ops.unblock(y)

    def rotated(self, rows: T, keys: T, rope: int, per_group: int, step: Step[T]) -> tuple[T, T]:
        """Rotate the results of `queries` and `keys` by their positions among a chunk's L keys."""
        ops, reach = step.ops, self.before * self.chunk
        own = step.rotation_between(rope, reach, reach + self.chunk)
        each_head = type(own)(*(ops.concat([part] * per_group, axis=0) for part in own))
        return apply_rope(rows, each_head, ops), apply_rope(keys, step.rotation_between(rope, 0, self.length), ops)

    def distance(self) -> np.ndarray[Any, Any]:
        """Distance (C, L) of each key behind each query."""
        place = np.arange(self.length)
        return place[self.before * self.chunk :, None] - place

    def hidden(self, distance: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether tokens at a distance are outside the window or skipped by the dilation."""
        shown = (distance < self.local) | (distance % self.dilation == 0)
        hidden: np.ndarray[Any, Any] = (distance < 0) | (distance >= self.window) | ~shown
        return hidden

    def bias(self, step: Step[T], first: int, per_group: int) -> T:
        """Score bias (B, 1, N, R·C, L): `MASKED` outside the window and before the token `first`."""

        def compute() -> T:
            ops, hidden = step.ops, np.tile(self.hidden(self.distance()), (per_group, 1))
            pattern = "" if self.dilation == 1 else f"_{self.dilation}_{self.local}"
            static = ops.constant(
                np.where(hidden, MASKED, 0.0), "float32", f"band_{self.window}x{self.chunk}x{per_group}{pattern}"
            )
            ages = ops.constant(
                np.arange(-self.window, 0.0)[:, None], "float32", f"before_{self.window}"
            )  # distances of buffered tokens
            start = ops.reshape(ops.cast(step.start, "float32"), (-1, 1, 1, 1))
            numbers = self.keys(ops.add(start, ages), step.numbers, ops)  # (B, 1, N, L, 1)
            early = ops.mul(empty_slot_mask(float(first), transposed(numbers, ops), ops), MASKED)
            return ops.add(static, early)

        key = ("band", self, first, per_group)
        return step.shared(key, compute)


def weighted(scores: Sequence[T], values: Sequence[T], ops: Ops[T]) -> tuple[T, T]:
    """Joint softmax over several sets of scores (…, rows, n_i) with values (…, n_i, d) -> output and weights."""
    weights = ops.softmax(ops.concat(scores))
    shares = ops.split(weights, [part.shape[-2] for part in values])
    y = ops.matmul(shares[0], values[0])
    for share, part in zip(shares[1:], values[1:], strict=True):
        y = ops.add(y, ops.matmul(share, part))
    return y, weights

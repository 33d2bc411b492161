"""The draft-check graph: logits after each of a few tokens, and the states after only the first `keep` of them.

Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318) drafts tokens, reads
them in one run and keeps those that the model would have chosen. A cache can drop rejected tokens; a sum cannot.
Recurrent decoders therefore usually copy the state at every token, or run again. Here each run gets the tokens that the
previous run accepted, followed by new drafts: only the accepted ones update the state, and the logits see all of them.
Nothing is rolled back or copied.

A few tokens need no chunks: they form one piece. Only the delta rule, which solves a system of fixed size, pads them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from t2r_export.graph.operators import END
from t2r_export.graph.pieces import GraphPieces
from t2r_export.graph.prompt import Prompt
from t2r_export.graph.recorder import Value, plus
from t2r_runtime.contract.signature import MOST_CHECKED


class Kept:
    """The tokens that update the states.

    Args:
        keep: (B,) int64, number of leading tokens; at least 1.
    """

    def __init__(self, prompt: Prompt, keep: Value) -> None:
        self.prompt, self.ops, self.count = prompt, prompt.ops, keep

    def mask(self, padded: bool = False) -> Value:
        """(B, 1, 1, 1, C), 1 for tokens that update the state; C is T, or `MOST_CHECKED` if padded."""
        return self._compared("Less", padded, self.count)

    def last(self, padded: bool = False) -> Value:
        """(B, 1, 1, 1, C), 1 for the last token that updates the state."""
        return self._compared("Equal", padded, self.ops.sub(self.count, 1))

    def of_buffer(self, x: Value, count: int) -> Value:
        """x (B, heads, count + T, d), earlier columns followed by the tokens' -> the last `count` kept columns."""
        ops, (B, heads, _, d) = self.ops, x.shape
        first = ops.reshape(self.count, (-1, 1, 1, 1))
        rows = ops.add(first, ops.constant(np.arange(count)[:, None], "int64", f"rows_{count}"))  # (B, 1, count, 1)
        sizes = [self.prompt.batch_size, ops.constant([heads, count, 1], "int64")]
        indices = ops.emit("Expand", [rows, ops.concat(sizes)], (B, heads, count, 1))
        return ops.emit("GatherND", [x, indices], (B, heads, count, d), batch_dims=2)

    def of_cache(self, x: Value) -> Value:
        """x (B, heads, P + T, d) -> (B, heads, P + keep, d). All rows keep the same number of tokens."""
        ops, (B, heads, total, d) = self.ops, x.shape
        end = ops.sub(self._first, self.prompt.tokens)  # offset from the end, at most 0
        length = ops.emit("Shape", [x], (1,), "int64", start=2, end=3)
        bounds = [ops.constant([0], "int64"), ops.add(length, end), ops.constant([2], "int64")]
        return ops.emit("Slice", [x, *bounds], (B, heads, f"kept_{total}", d))

    @cached_property
    def _first(self) -> Value:
        """(1,): `keep` of the first row."""
        return self.ops.sliced(self.count, 0, 1, 0, 1)

    def _compared(self, op: str, padded: bool, other: Value) -> Value:
        ops, prompt = self.ops, self.prompt
        if padded:
            places = ops.constant(np.arange(MOST_CHECKED), "int64", f"places_int64_{MOST_CHECKED}")
        else:
            places = prompt.range(ops.constant([0], "int64"), prompt.tokens, prompt.length)
        found = ops.emit(op, [places, ops.unsqueeze(other, 1)], (prompt.batch, places.shape[0]), "bool")
        return ops.cast(found, "float32").viewed((prompt.batch, 1, 1, 1, places.shape[0]))


class Few(GraphPieces):
    """One piece of all tokens, with the R heads of a group on the axis of pieces.

    Args:
        padded: pad the piece to `MOST_CHECKED` tokens.
    """

    def __init__(self, prompt: Prompt, kept: Kept, padded: bool) -> None:
        super().__init__(prompt, MOST_CHECKED)
        self.kept, self.padded = kept, padded

    def cut(self, x: Value) -> Value:
        return self.ops.unsqueeze(self._filled(x), 2)

    def with_ones(self, v: Value) -> Value:
        ops, (B, G, T, V) = self.ops, v.shape
        assert isinstance(V, int) and not self.padded
        return ops.unsqueeze(self.prompt.filled(v, None, 1, 1.0, (B, G, T, V + 1)), 2)

    def rows(self, q: Value, kv_heads: int) -> Value:
        q, ops = self._filled(q), self.ops
        _, H, _, n = q.shape
        assert isinstance(H, int) and isinstance(n, int)
        return ops.reshape(q, (0, kv_heads, H // kv_heads, -1, n))

    def heads(self, rows: Value, heads: int) -> Value:
        ops, n = self.ops, rows.shape[-1]
        assert isinstance(n, int)
        x = ops.reshape(rows, (0, heads, -1, n))
        return self.prompt.trimmed(x) if self.padded else x

    def by_head(self, rows: Value, factor: Value) -> Value:
        return self.ops.mul(rows, factor)

    def square(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        ops, T = self.ops, self.prompt.length
        whole = ops.constant(array, "float32", name)
        if self.padded:
            return whole
        more = array.shape[1] - array.shape[0]
        columns = ops.add(self.prompt.tokens, ops.constant([more], "int64")) if more else self.prompt.tokens
        ends = ops.concat([self.prompt.tokens, columns])
        bounds = [ops.constant([0, 0], "int64"), ends, ops.constant([0, 1], "int64")]
        return ops.emit("Slice", [whole, *bounds], (T, plus(T, more)))

    def masked(self, scores: Value, name: str, array: np.ndarray[Any, Any]) -> Value:
        return self.ops.mul(scores, self.square(f"{name}_1x{self.capacity}", array))

    def first_and_rest(self, x: Value) -> list[Value]:
        if self.padded:
            return super().first_and_rest(x)
        return [self.ops.sliced(x, 0, 1, 4, 1), self.ops.sliced(x, 1, END, 4, self.prompt.length)]

    def last(self, x: Value) -> Value:
        return self.ops.matmul(self.kept.last(self.padded), x)

    def of_kept(self, k: Value) -> Value:
        mask = self.kept.mask(self.padded)
        return self.ops.mul(k, mask.viewed((mask.shape[0], 1, 1, mask.shape[-1], 1)))

    def states(self, start: Value, added: Value, carry: Value | None) -> tuple[Value, Value]:
        ops, before = self.ops, self.ops.unsqueeze(start, 2)
        left = before
        if carry is not None:
            left = (ops.mul if carry.shape[-1] == 1 else ops.matmul)(carry, before)
        return before, ops.squeeze(ops.add(left, added), 2)

    def _filled(self, x: Value) -> Value:
        """x (B, heads, T, d), zero-padded along T if the piece is padded."""
        if not self.padded:
            return x
        rest = self.ops.sub(self.ops.constant([self.capacity], "int64"), self.prompt.tokens)
        return self.prompt.filled(x, rest, 0, 0.0, (*x.shape[:2], self.capacity, x.shape[3]))

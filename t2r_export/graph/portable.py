"""The portable target: every operator as standard ONNX nodes, for one token or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from t2r_export.config.mixers import Guard
from t2r_export.graph.draft_check import Few, Kept
from t2r_export.graph.operators import Operators
from t2r_export.graph.pieces import Chunks, chunk_size, complex_scan, scan
from t2r_export.graph.prompt import Prompt
from t2r_export.graph.recorder import Dim, Value, product
from t2r_export.model.ops import MASKED, Erase
from t2r_export.model.recurrences import linear_attention


class GraphOps(Operators):
    """Records a model's operators as ONNX nodes. Other targets are subclasses (t2r_export.graph.targets).

    Args:
        model: its parameters and buffers become initializers under their own names. batch: the batch dimension: a
        letter, or a number for a static graph. tokens: the letter of the token dimension; None: one token per sequence.
    """

    def __init__(self, model: nn.Module, batch: Dim, tokens: str | None = None) -> None:
        super().__init__(model)
        self.batch, self.tokens = batch, tokens
        self._prompt: Prompt | None = None
        self.keep: Value | None = None  # (B,) int64: the number of leading tokens that update the states; None: all
        self._kept: Kept | None = None
        self._masks: dict[int, Value] = {}
        self.damping = 1.0  # factor of φ(q), a power of two; the quotient does not depend on it
        self.low: dict[str, Value] = {}  # accumulated rounding errors of compensated states, by state name
        self.low_after: dict[str, Value] = {}  # their values after this step

    @property
    def many(self) -> bool:
        return self.tokens is not None

    @property
    def prompt(self) -> Prompt:
        assert self._prompt is not None, "the embeddings are the first that is read"
        return self._prompt

    def flatten_tokens(self, x: Value) -> Value:
        if not self.many:
            return x
        self._prompt = Prompt(self, x)
        self._kept = None if self.keep is None else Kept(self._prompt, self.keep)
        return self.settled(x.viewed((product(x.shape[:2]), x.shape[2])))

    def _by_sequence(self, x: Value) -> Value | None:
        if x.shape[0] == self.batch:  # of a step, or the last tokens
            return x.viewed((self.batch, 1, x.shape[1]))
        of_tokens = self.many and x.shape[0] == product([self.batch, self.tokens])  # type: ignore[list-item]
        return self.prompt.by_sequence(x, x.shape[1]) if of_tokens else None  # type: ignore[arg-type]

    @property
    def keeps_all(self) -> bool:
        return self.keep is None

    def of_kept(self, x: Value) -> Value:
        if self._kept is None:
            return x
        mask = self._kept.mask()
        return self.mul(x, mask.viewed((mask.shape[0], *[1] * (len(x.shape) - 2), mask.shape[-1])))

    def kept_cache(self, x: Value) -> Value:
        return x if self._kept is None else self._kept.of_cache(x)

    def kept_buffer(self, x: Value, count: int) -> Value:
        return super().kept_buffer(x, count) if self._kept is None else self._kept.of_buffer(x, count)

    def last_token(self, x: Value) -> Value:
        if not self.many or self.keep is not None:  # when drafts are checked, logits of all tokens are needed
            return x
        x = self.prompt.by_sequence(x, x.shape[1])  # type: ignore[arg-type]
        return self.emit("Gather", [x, self.constant(-1, "int64")], (x.shape[0], x.shape[2]), axis=1)

    def split_heads(self, x: Value, heads: int) -> Value:
        assert isinstance(x.shape[1], int)
        size = x.shape[1] // heads
        if not self.many:
            return self.reshape(x, (0, heads, 1, size))
        return self.transpose(self.prompt.by_sequence(x, heads, size), (0, 2, 1, 3))

    def merge_heads(self, x: Value) -> Value:
        B, heads, T, size = x.shape
        x = self.transpose(x, (0, 2, 1, 3))
        return x.viewed((product([B, T]), product([heads, size])))

    def advance(self, start: Value) -> tuple[Value, Value]:
        if not self.many:
            return self.unsqueeze(start, 1), self.add(start, 1)
        tokens = self.cast(self.prompt.tokens, start.dtype)
        steps = self._places(self.prompt.length, tokens)
        read = tokens if self.keep is None else self.cast(self.keep, start.dtype)
        return self.add(self.unsqueeze(start, 1), steps), self.add(start, read)

    def blocks(self, x: Value, size: int) -> Value:
        return self.prompt.blocks(x, size)

    def unblock(self, x: Value) -> Value:
        return self.prompt.unblock(x)

    def damp(self, q: Value) -> Value:
        return q if self.damping == 1.0 else self.mul(q, self.damping)

    def divide(self, numerator: Value, denominator: Value, guard: Guard) -> Value:
        eps = guard.eps
        if self.damping != 1.0:  # an eps that float16 rounds to 0 would have no effect
            eps = max(eps * self.damping, 2**-20)
        return self.div(numerator, self.guarded(denominator, guard.kind, eps))

    def accumulate(self, state: Value, increment: Value) -> Value:
        """Sum, compensated for states in `low`: Dekker 1971's two-sum, twice, is exact to the last digit of two.

        A float16 sum stops growing after 2,048 equal terms; with the low part it continues.
        """
        if state.name not in self.low:
            return self.add(state, increment)
        total, rest = self._two_sum(state, increment)
        total, self.low_after[state.name] = self._two_sum(total, self.add(self.low[state.name], rest))
        return total

    def _two_sum(self, large: Value, small: Value) -> tuple[Value, Value]:
        """large + small and its rounding error, for |large| >= |small|."""
        total = self.add(large, small)
        return total, self.sub(small, self.sub(total, large))

    def causal_attention(self, q: Value, k: Value, v: Value, scale: float, softcap: float | None = None) -> Value:
        H, G = q.shape[1], k.shape[1]
        assert isinstance(H, int) and isinstance(G, int)
        # scale q, not the scores: d elements per head instead of P + T
        rows = self.group_queries(self.mul(q, scale), G)  # (B, G, R·T, d)
        scores = self.soft_cap(self.matmul(rows, self.transpose(k, (0, 1, 3, 2))), softcap)
        if self.many:
            scores = self.add(scores, self._mask(k, H // G))
        return self.ungroup_queries(self.matmul(self.softmax(scores), v), H)

    def _mask(self, k: Value, per_group: int) -> Value:
        """Additive mask (R·T, P + T): `MASKED` where the row's token must not see the column's. All layers with growing
        caches share it."""
        if per_group not in self._masks:
            hidden = self.mul(self._hidden(k), MASKED)
            self._masks[per_group] = self.concat([hidden] * per_group, axis=0)
        return self._masks[per_group]

    def _hidden(self, k: Value) -> Value:
        """1 where a new token must not see another, float32 (T, P + T), for keys k (B, G, P + T, d)."""
        prompt, total = self.prompt, self.emit("Shape", [k], (1,), "int64", start=2, end=3)
        other = prompt.range(self.constant([0], "int64"), total, k.shape[2])
        own = self.unsqueeze(prompt.range(self.sub(total, prompt.tokens), total, prompt.length), 1)
        hidden = self.emit("Greater", [other, own], (prompt.length, k.shape[2]), "bool")
        return self.cast(hidden, "float32")

    def causal_mask(self, past: Value, new: Value) -> Value:
        return self._hidden(self.concat([past, new], axis=2))

    def cache_places(self, keys: Value, new: Value) -> tuple[Value, Value]:
        length = keys.shape[2]
        total = self.cast(self.emit("Shape", [keys], (1,), "int64", start=2, end=3), "int32")
        tokens = self.cast(self.prompt.tokens, "int32") if self.many else self.constant([1], "int32")
        first = self.sub(total, tokens)
        own = self.prompt.range(first, total, self.prompt.length) if self.many else first
        return self.unsqueeze(own, 1), self._places(length, total)

    def padding_mask(self, x: Value, lengths: Value) -> Value:
        length = x.shape[2]
        end = self.cast(self.emit("Shape", [x], (1,), "int64", start=2, end=3), lengths.dtype)
        places = self._places(length, end)
        hidden = self.emit("GreaterOrEqual", [places, self.unsqueeze(lengths, 1)], (lengths.shape[0], length), "bool")
        return self.unsqueeze(self.unsqueeze(self.cast(hidden, "float32"), 1), 1)

    def _places(self, length: Dim, end: Value) -> Value:
        """0 … length - 1 (length,); `end` (1,) is the length, which may be known only at run time."""
        if isinstance(length, int):
            return self.constant(np.arange(length), end.dtype, f"places_{end.dtype}_{length}")
        zero, one = self.constant(0, end.dtype), self.constant(1, end.dtype)
        return self.emit("Range", [zero, self.scalar(end), one], (length,), end.dtype)

    def linear_attention_chunks(
        self,
        q: Value,
        k: Value,
        v: Value,
        S: Value,
        z: Value | None,
        log_gate: Value | None,
        beta: Value | None,
        erase: Erase[Value] | None = None,
    ) -> tuple[Value, Value | None, Value, Value | None]:
        few = self._kept and Few(self.prompt, self._kept, padded=beta is not None or erase is not None)
        pieces = few or Chunks(self.prompt, chunk_size(log_gate, beta, erase))
        return linear_attention(pieces, q, k, v, S, z, log_gate, beta, erase)

    def linear_recurrence_many(self, x: Value, log_gate: Value, state: Value) -> tuple[Value, Value]:
        D = x.shape[1]
        assert isinstance(D, int)
        shares, added = self.exp(log_gate), self.prompt.by_sequence(x, D)
        if shares.shape == x.shape:
            shares = self.prompt.by_sequence(shares, D)
        else:  # the same for all tokens
            shares = self.prompt.of_each(shares.viewed((1, 1, 1, D))).viewed(added.shape)
        return self._scanned(*scan(self, state, shares, added, axis=1))

    def complex_recurrence_many(self, x: Value, factor: Value, state: Value) -> tuple[Value, Value]:
        D = x.shape[1]
        assert isinstance(D, int)
        return self._scanned(*complex_scan(self, state, factor, self.prompt.by_sequence(x, D)))

    def _scanned(self, y: Value, after: Value) -> tuple[Value, Value]:
        """States y (B, T, D) as rows, and the state after the last token that enters it."""
        if self._kept is not None:  # selected by a one-hot product
            last = self._kept.last()
            after = self.squeeze(self.matmul(last.viewed((last.shape[0], 1, last.shape[-1])), y), 1)
        return y.viewed((product(y.shape[:2]), y.shape[2])), after

    # -- recurrent networks over many tokens: ONNX's own nodes, with gates in another order

    def lstm(self, x: Value, h: Value, c: Value, weights: Sequence[Tensor]) -> tuple[Value, Value, Value]:
        y, h, c = self._run("LSTM", self._recurrent(x, weights, (0, 3, 1, 2)), [h, c])
        return y, h, c

    def gru(self, x: Value, h: Value, weights: Sequence[Tensor]) -> tuple[Value, Value]:
        y, h = self._run("GRU", self._recurrent(x, weights, (1, 0, 2)), [h], linear_before_reset=1)
        return y, h

    def _recurrent(self, x: Value, weights: Sequence[Tensor], order: Sequence[int]) -> list[Value]:
        """x (T, B, D), W and R (1, gates·D, D) and their biases (1, 2·gates·D), gates in ONNX's order."""
        D = x.shape[1]
        assert isinstance(D, int)

        def ordered(tensor: Tensor) -> Value:
            parts = self.split(self.parameter(tensor), [D] * len(order), axis=0)
            return self.concat([parts[i] for i in order], axis=0)

        W, R, of_x, of_h = (ordered(tensor) for tensor in weights)
        x = self.transpose(self.prompt.by_sequence(x, D), (1, 0, 2))
        return [x, self.unsqueeze(W, 0), self.unsqueeze(R, 0), self.unsqueeze(self.concat([of_x, of_h]), 0)]

    def _run(self, op: str, inputs: list[Value], states: Sequence[Value], **attributes: Any) -> list[Value]:
        """y as rows (N, D), and the states after (B, D)."""
        T, B, D = inputs[0].shape
        before = [self.unsqueeze(state, 0) for state in states]
        shapes = [(T, 1, B, D), *((1, B, D) for _ in states)]

        def run(lengths: Value) -> list[Value]:
            return self.emit_many(op, [*inputs, lengths, *before], shapes, hidden_size=D, **attributes)

        y, *after = run(Value("", "float32", ()))
        if self.keep is not None:
            _, *after = run(self.cast(self.keep, "int32"))
        y = self.transpose(self.squeeze(y, 1), (1, 0, 2))
        return [y.viewed((product([B, T]), D)), *(self.squeeze(state, 0) for state in after)]

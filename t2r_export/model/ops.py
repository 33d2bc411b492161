"""The operators that models are written in.

Models take their operators as an argument: `TorchOps` computes, `GraphOps` of t2r_export.graph records the ONNX graph
with the same code. A test compares the values of both, method by method.

The operators process one token per sequence (a step) or T tokens per sequence. Tensors have one of two layouts:

- rows (N, D): one per token, N = B in a step and B·T for T tokens, by sequence; for norms, projections, feed-forwards;
- heads (B, heads, T, size), T = 1 in a step; for mixers. `split_heads` and `merge_heads` convert.

Parameters are passed as `torch.Tensor`. `axis` may be negative.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from torch import Tensor

from t2r_export.config.mixers import Guard
from t2r_export.model.experts import Experts, all_experts, chosen_experts
from t2r_export.model.primitives import MASKED, Primitives, Shaped, State, T

__all__ = ["MASKED", "Erase", "Experts", "Ops", "Shaped", "State", "T", "update_rule"]


class Erase(NamedTuple, Generic[T]):
    """Rank-one correction of the decayed state: S += write (readᵀ S).

    The delta rule reads and writes along its key; RWKV-7 has separate vectors (Peng et al. 2025, arXiv 2503.14456).
    """

    read: T  # (B, G, T, K)
    write: T  # (B, G, T, K)


class Ops(Primitives[T]):
    """All operators of a model."""

    @property
    @abstractmethod
    def many(self) -> bool:
        """Whether the operators process T tokens per sequence instead of one."""

    # -- depends on the number of tokens

    @abstractmethod
    def flatten_tokens(self, x: T) -> T:
        """Embeddings (B, D) of a step or (B, T, D) -> rows (N, D)."""

    @abstractmethod
    def last_token(self, x: T) -> T:
        """Rows (N, D) -> rows of the last tokens (B, D)."""

    @abstractmethod
    def split_heads(self, x: T, heads: int) -> T:
        """Rows (N, heads · size) -> (B, heads, T, size)."""

    @abstractmethod
    def merge_heads(self, x: T) -> T:
        """Inverse of `split_heads`."""

    @abstractmethod
    def advance(self, start: T) -> tuple[T, T]:
        """Position `start` (B,) of the first token -> positions of all tokens (B, T), and of the next token (B,)."""

    @abstractmethod
    def blocks(self, x: T, size: int) -> T:
        """x (B, heads, T, d) -> N zero-padded chunks (B, heads, N, size, d)."""

    @abstractmethod
    def unblock(self, x: T) -> T:
        """Inverse of `blocks`: (B, heads, N, size, d) -> (B, heads, T, d)."""

    @abstractmethod
    def causal_attention(self, q: T, k: T, v: T, scale: float, softcap: float | None = None) -> T:
        """Causal attention softmax(scale · q kᵀ) v (Vaswani et al. 2017, eq. 1).

        Args:
            q: (B, H, T, d); G divides H.
            k: (B, G, P + T, d), P cached tokens and the T tokens of q.
            v: (B, G, P + T, V).
            softcap: of the scores, see `soft_cap`.

        Returns:
            (B, H, T, V).
        """

    @abstractmethod
    def causal_mask(self, past: T, new: T) -> T:
        """Mask (T, P + T) for past (B, G, P, d) and new (B, G, T, d): float32, 1 for later tokens, else 0."""

    @abstractmethod
    def cache_places(self, keys: T, new: T) -> tuple[T, T]:
        """Cache positions of the new tokens (B, G, T, ·), as (T, 1), and of all keys (B, G, P + T, d), as (P + T),
        int32: the new tokens are the last T of 0, …, P + T - 1."""

    @abstractmethod
    def padding_mask(self, x: T, lengths: T) -> T:
        """Mask (B, 1, 1, M) for x (B, G, M, d) with `lengths` (B,): float32, 1 for padding, else 0."""

    @abstractmethod
    def lstm(self, x: T, h: T, c: T, weights: Sequence[Tensor]) -> tuple[T, T, T]:
        """An LSTM layer over T tokens: rows x (N, D), h and c (B, D), weights as in torch -> rows y (N, D), h and c."""

    @abstractmethod
    def gru(self, x: T, h: T, weights: Sequence[Tensor]) -> tuple[T, T]:
        """A GRU layer, as `lstm`, with the reset gate after the product as in cuDNN."""

    @abstractmethod
    def linear_attention_chunks(
        self, q: T, k: T, v: T, S: T, z: T | None, log_gate: T | None, beta: T | None, erase: Erase[T] | None = None
    ) -> tuple[T, T | None, T, T | None]:
        """`linear_attention` of T tokens in parallel chunks, after `_spread`."""

    @abstractmethod
    def linear_recurrence_many(self, x: T, log_gate: T, state: T) -> tuple[T, T]:
        """`linear_recurrence` of T tokens."""

    @abstractmethod
    def complex_recurrence_many(self, x: T, factor: T, state: T) -> tuple[T, T]:
        """`complex_recurrence` of T tokens."""

    # -- draft-check graphs update the states with the first tokens only

    @property
    def keeps_all(self) -> bool:
        """Whether all tokens update the states."""
        return True

    def of_kept(self, x: T) -> T:
        """x (B, …, T), with zeros for tokens that do not update the states."""
        return x

    def kept_cache(self, x: T) -> T:
        """The cache after these tokens, from x (B, heads, P + T, d): the old cache and all tokens."""
        return x

    def kept_buffer(self, x: T, count: int) -> T:
        """The buffer after these tokens, from x (B, heads, count + T, d): the old buffer and all tokens."""
        return self.slice_last(x, count)

    # -- composed

    def pack_for_fused(self, x: T) -> T:
        """Reshape a packed projection (N, n) once for the target's `linear_attention`."""
        return x

    def damp(self, q: T) -> T:
        """Scale φ(q) against overflow; the factor cancels in `divide`."""
        return q

    def divide(self, numerator: T, denominator: T, guard: Guard) -> T:
        """numerator / guard(denominator)."""
        return self.div(numerator, self.guarded(denominator, guard.kind, guard.eps))

    def guarded(self, denominator: T, kind: str, eps: float) -> T:
        return self.maximum(denominator, eps) if kind == "clamp" else self.add(denominator, eps)

    def soft_cap(self, x: T, cap: float | None) -> T:
        """cap · tanh(x / cap), or x without a cap (Gemma 2, arXiv 2408.00118, section 2)."""
        return x if cap is None else self.mul(self.tanh(self.mul(x, 1.0 / cap)), cap)

    def each(self, function: Callable[[T], T], *heads: T) -> list[T]:
        """Apply `function` to several tensors of heads (B, ·, T, d). It must treat all heads alike: graphs compute it
        once for adjacent heads."""
        return [function(x) for x in heads]

    def rotate(self, x: T, cos: T, sin: T) -> T:
        """Rotate the first 2F dimensions of x (B, heads, T, d), pairing i with i + F (Su et al. 2021, eq. 34).

        Args:
            cos, sin: (…, F).
        """
        half, d = cos.shape[-1], x.shape[-1]
        a, b, *rest = self.split(x, [half, half, *([d - 2 * half] if d > 2 * half else [])])
        first, second = self.sub(self.mul(a, cos), self.mul(b, sin)), self.add(self.mul(b, cos), self.mul(a, sin))
        return self.concat([first, second, *rest])

    def experts(self, x: T, scores: T, experts: Experts) -> T:
        """A mixture of experts (Jiang et al. 2024, arXiv 2401.04088, section 2.1): rows x (N, D) and the router's
        scores (N, E) -> (N, D)."""
        return (all_experts if self.many else chosen_experts)(x, scores, experts, self)

    def accumulate(self, state: T, increment: T) -> T:
        """state + increment; float16-safe graphs compensate the rounding error."""
        return self.add(state, increment)

    def group_queries(self, q: T, kv_heads: int) -> T:
        """q (B, H, T, d) -> (B, G, R·T, d): stack the R query heads of each kv head."""
        return q if q.shape[1] == kv_heads else self.reshape(q, (0, kv_heads, -1, 0))

    def ungroup_queries(self, x: T, heads: int) -> T:
        """Inverse of `group_queries`."""
        return x if x.shape[1] == heads else self.reshape(x, (0, heads, -1, x.shape[-1]))

    def linear_attention(
        self,
        q: T,
        k: T,
        v: T,
        S: T,
        z: T | None,
        log_gate: T | None = None,
        beta: T | None = None,
        erase: Erase[T] | None = None,
    ) -> tuple[T, T | None, T, T | None]:
        """Linear attention without the division (Kasai et al. 2021, eq. 4 and 5).

        log_gate, beta and erase determine the update rule (t2r_export.model.recurrences).

        Args:
            q: φ(q), (B, Hq, T, K); Hq is a multiple or a divisor of G.
            k: φ(k), (B, Gk, T, K); Gk divides G.
            v: (B, G, T, V).
            S, z: the states before, (B, G, K, V) and (B, G, K); z is None without a normalizer.
            log_gate: log of the decay of S and z, at most 0: (B or 1, G, T or 1, 1 or K), per head or key channel.
            beta: (B, G, T, 1), the rate of the delta rule; requires z=None.
            erase: separate erase vectors, (B, G, T, K) each; require z=None and beta=None.

        Returns:
            φ(q)ᵀS (B, H, T, V), φ(q)·z (B, H, T, 1), and S and z after; None for missing z. H is the larger of Hq and
            G; heads that share a query or key head are adjacent.
        """
        G, K = S.shape[1], S.shape[2]
        q, k = self._spread(q, k, G)
        if self.many:
            return self.linear_attention_chunks(q, k, v, S, z, log_gate, beta, erase)
        kept = self._left_of_state(log_gate)
        if kept is not None:
            S = self.mul(S, kept)
        if beta is not None:
            v = self.mul(self.sub(v, self.matmul(k, S)), beta)
        if erase is not None:
            S = self.add(S, self.matmul(self.reshape(erase.write, (0, 0, K, 1)), self.matmul(erase.read, S)))
        # an outer product as MatMul, because a broadcasting Mul of [·, K, 1] was wrong on one accelerator
        S = self.accumulate(S, self.matmul(self.reshape(k, (0, 0, K, 1)), v))
        rows = self.group_queries(q, G)  # (B, G, R, K)
        numerator = self.ungroup_queries(self.matmul(rows, S), q.shape[1])
        if z is None:
            return numerator, None, S, None
        denominator, z = self._step_normalizer(q, k, z, kept)
        return numerator, denominator, S, z

    def normalizer(self, q: T, k: T, z: T, log_gate: T | None = None) -> tuple[T, T]:
        """The normalizer of `linear_attention` alone: φ(q)·z (B, H, T, 1), and z after."""
        if not self.many:
            return self._step_normalizer(*self._spread(q, k, z.shape[1]), z, self._left_of_state(log_gate))
        ones = self.add(self.mul(self.mean(k), 0.0), 1.0)  # z is S for v = 1
        ones = self.repeat_heads(ones, z.shape[1])
        denominator, _, z, _ = self.linear_attention(q, k, ones, self.unsqueeze(z, -1), None, log_gate)
        return denominator, self.squeeze(z, -1)

    def _spread(self, q: T, k: T, heads: int) -> tuple[T, T]:
        """Repeat shared heads of q and k to the state's `heads`."""
        return q if q.shape[1] > heads else self.repeat_heads(q, heads), self.repeat_heads(k, heads)

    def _left_of_state(self, log_gate: T | None) -> T | None:
        """The decay of S in a step, (B or 1, G, 1, 1) or (B or 1, G, K, 1)."""
        if log_gate is None:
            return None
        kept, size = self.exp(log_gate), log_gate.shape[-1]
        return kept if size == 1 else self.reshape(kept, (0, 0, size, 1))

    def _step_normalizer(self, q: T, k: T, z: T, kept: T | None) -> tuple[T, T]:
        if kept is not None:
            z = self.mul(z, self.squeeze(kept, -1))
        z = self.accumulate(z, self.squeeze(k, 2))
        denominator = self.matmul(self.group_queries(q, z.shape[1]), self.unsqueeze(z, -1))
        return self.ungroup_queries(denominator, q.shape[1]), z

    def linear_recurrence(self, x: T, log_gate: T, state: T) -> tuple[T, T]:
        """y_t = exp(log_gate_t) ⊙ y_{t-1} + x_t, elementwise (RG-LRU: De et al. 2024, arXiv 2402.19427, eq. 4).

        Args:
            x: rows (N, D). log_gate: rows (N, D), or (1, D) for all tokens; at most 0.
            state: y before, (B, D).

        Returns:
            y, rows (N, D), and the last y (B, D).
        """
        if self.many:
            return self.linear_recurrence_many(x, log_gate, state)
        y = self.add(self.mul(state, self.exp(log_gate)), x)
        return y, y

    def complex_recurrence(self, x: T, factor: T, state: T) -> tuple[T, T]:
        """y_t = a y_{t-1} + x_t, elementwise (S4D: Gu et al. 2022, arXiv 2206.11893, section 2.1).

        D complex numbers are D real parts and then D imaginary parts.

        Args:
            x: rows (N, 2·D). factor: a, (2·D,), the same for all tokens, at most 1 in size.
            state: y before, (B, 2·D).

        Returns:
            y, rows (N, 2·D), and the last y (B, 2·D).
        """
        if self.many:
            return self.complex_recurrence_many(x, factor, state)
        y = self.add(self.complex_product(factor, state), x)
        return y, y

    def complex_product(self, a: T, b: T) -> T:
        """Products of complex numbers, (…, 2·D) each: D real parts and then D imaginary parts."""
        half = a.shape[-1] // 2
        (real, imaginary), (r, i) = (self.split(x, [half, half]) for x in (a, b))
        first = self.sub(self.mul(real, r), self.mul(imaginary, i))
        return self.concat([first, self.add(self.mul(real, i), self.mul(imaginary, r))])


def update_rule(log_gate: Any | None, beta: Any | None) -> str:
    """The update_rule attribute of ONNX's LinearAttention."""
    return "_".join(name for name, part in (("gated", log_gate), ("delta", beta)) if part is not None) or "linear"

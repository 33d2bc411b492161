"""The small set of operators that a model is written in.

A model takes its operators as an argument. With `TorchOps` it computes; with `GraphOps` of t2r_export.graph, the same
code writes the ONNX graph. So there is one definition of a step and one of a sequence, the exporter needs to know no
mixer, and writing a graph of 30 layers takes about as long as storing its weights. A test compares the two classes
method by method, in value.

The operators also know how many tokens are read: one of each sequence (a step), or T of each. Two kinds of tensors:

- rows, (N, D): one per token, N = B in a step, and B·T for T tokens, sequence after sequence. Norms, projections and
  feed-forwards take rows.
- heads, (B, heads, T, size), T = 1 in a step: what mixers take and give. `split_heads` and `merge_heads` convert.

Parameters are passed as the `torch.Tensor` that the module holds. `axis` may be negative.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from torch import Tensor

from t2r_export.config.mixers import Guard
from t2r_export.model.primitives import MASKED, Primitives, Shaped, State, T

__all__ = ["MASKED", "Erase", "Ops", "Shaped", "State", "T", "update_rule"]


class Erase(NamedTuple, Generic[T]):
    """What a token takes out of the decayed state: S += write (readᵀ S).

    The delta rule reads and writes along its key. RWKV-7 and other rules with a transition of rank one have separate
    vectors (Peng et al. 2025, arXiv 2503.14456).
    """

    read: T  # (B, G, T, K)
    write: T  # (B, G, T, K)


class Ops(Primitives[T]):
    """The operators of a model, those that depend on how many tokens are read included."""

    @property
    @abstractmethod
    def many(self) -> bool:
        """Whether T tokens of each sequence are read, and not one."""

    # -- what depends on how many tokens are read

    @abstractmethod
    def flatten_tokens(self, x: T) -> T:
        """Embeddings (B, D) in a step, (B, T, D) otherwise -> rows (N, D)."""

    @abstractmethod
    def last_token(self, x: T) -> T:
        """Rows (N, D) -> those of each sequence's last token (B, D)."""

    @abstractmethod
    def split_heads(self, x: T, heads: int) -> T:
        """Rows (N, heads · size) -> (B, heads, T, size)."""

    @abstractmethod
    def merge_heads(self, x: T) -> T:
        """Inverse of `split_heads`."""

    @abstractmethod
    def advance(self, start: T) -> tuple[T, T]:
        """The position `start` (B,) before these tokens -> each token's own (B, T), and that after them (B,)."""

    @abstractmethod
    def blocks(self, x: T, size: int) -> T:
        """x (B, heads, T, d) -> (B, heads, N, size, d): N chunks of tokens, the last one filled up with zeros."""

    @abstractmethod
    def unblock(self, x: T) -> T:
        """Inverse of `blocks`: (B, heads, N, size, d) -> (B, heads, T, d)."""

    @abstractmethod
    def causal_attention(self, q: T, k: T, v: T, scale: float, softcap: float | None = None) -> T:
        """softmax(scale · q kᵀ) v over the tokens up to each query's own (Vaswani et al. 2017, eq. 1).

        Args:
            q: (B, H, T, d). k: (B, G, P + T, d). v: (B, G, P + T, V). G divides H; the T are the last of the P + T.
            softcap: of the scores, before the mask: `soft_cap`.

        Returns:
            (B, H, T, V).
        """

    @abstractmethod
    def causal_mask(self, past: T, new: T) -> T:
        """For past (B, G, P, d) and new (B, G, T, d) behind it: float32 (T, P + T), 1 where a new token does not see
        another, and else 0. It sees itself and those before it."""

    @abstractmethod
    def causal_distance(self, keys: T, new: T) -> T:
        """For keys (B, G, P + T, d), of which new (B, G, T, ·) are the last T: float32 (T, P + T), how many tokens each
        stands behind each new one; negative for those that come after it."""

    @abstractmethod
    def padding_mask(self, x: T, lengths: T) -> T:
        """For x (B, G, M, d), of each row the first `lengths` (B,) tokens: float32 (B, 1, 1, M), 1 behind them and else
        0."""

    @abstractmethod
    def lstm(self, x: T, h: T, c: T, weights: Sequence[Tensor]) -> tuple[T, T, T]:
        """A layer of long short-term memory over T tokens: x rows (N, D), h and c (B, D), torch's four weights ->
        y rows (N, D), h and c after."""

    @abstractmethod
    def gru(self, x: T, h: T, weights: Sequence[Tensor]) -> tuple[T, T]:
        """The same of a gated recurrent unit, the reset gate behind the product as in cuDNN."""

    @abstractmethod
    def linear_attention_chunks(
        self,
        q: T,
        k: T,
        v: T,
        S: T,
        z: T | None,
        log_gate: T | None,
        beta: T | None,
        erase: Erase[T] | None = None,
    ) -> tuple[T, T | None, T, T | None]:
        """`linear_attention` of T tokens, as products over chunks; q and k have a head for each of S."""

    @abstractmethod
    def linear_recurrence_many(self, x: T, log_gate: T, state: T) -> tuple[T, T]:
        """`linear_recurrence` of T tokens."""

    # -- states after the first few of the tokens, where a graph checks drafts; else after all of them

    @property
    def keeps_all(self) -> bool:
        """Whether states are those after the last token."""
        return True

    def of_kept(self, x: T) -> T:
        """x (B, …, T), with zeros for the tokens that no state keeps."""
        return x

    def kept_cache(self, x: T) -> T:
        """x (B, heads, P + T, d), a cache and the tokens behind it -> without those that no state keeps."""
        return x

    def kept_buffer(self, x: T, count: int) -> T:
        """x (B, heads, count + T, d), a buffer and the tokens behind it -> the last `count` of what states keep."""
        return self.slice_last(x, count)

    # -- composed of the others

    def pack_for_fused(self, x: T) -> T:
        """A packed projection (N, numbers) in the form in which this target's `linear_attention` takes its parts."""
        return x

    def damp(self, q: T) -> T:
        """φ(q) as this target computes with it: `divide` gives the same for any factor."""
        return q

    def divide(self, numerator: T, denominator: T, guard: Guard) -> T:
        """numerator / guard(denominator), the denominator kept from zero as the model's config says."""
        return self.div(numerator, self.guarded(denominator, guard.kind, guard.eps))

    def guarded(self, denominator: T, kind: str, eps: float) -> T:
        return self.maximum(denominator, eps) if kind == "clamp" else self.add(denominator, eps)

    def soft_cap(self, x: T, cap: float | None) -> T:
        """cap · tanh(x / cap), or x where there is no cap (Gemma 2, arXiv 2408.00118, section 2)."""
        return x if cap is None else self.mul(self.tanh(self.mul(x, 1.0 / cap)), cap)

    def rotate(self, x: T, cos: T, sin: T) -> T:
        """The first 2F numbers of heads x (B, heads, T, d), their first half against the second, by angles of cosines
        and sines (…, F), as complex numbers are multiplied; what is behind them stays (Su et al. 2021, eq. 34)."""
        half, d = cos.shape[-1], x.shape[-1]
        a, b, *rest = self.split(x, [half, half, *([d - 2 * half] if d > 2 * half else [])])
        first, second = self.sub(self.mul(a, cos), self.mul(b, sin)), self.add(self.mul(b, cos), self.mul(a, sin))
        return self.concat([first, second, *rest])

    def accumulate(self, state: T, increment: T) -> T:
        """state + increment, for a state that does nothing but grow: a graph may keep what the sum rounds off."""
        return self.add(state, increment)

    def group_queries(self, q: T, kv_heads: int) -> T:
        """q (B, H, T, d) -> (B, G, R·T, d): the R heads of a group below one another, each with all its tokens."""
        return q if q.shape[1] == kv_heads else self.reshape(q, (0, kv_heads, -1, q.shape[-1]))

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
        """Linear attention up to the guard and the division (Kasai et al. 2021, eq. 4 and 5).

        What is given of log_gate, beta and erase makes the update rule (t2r_export.model.recurrences).

        Args:
            q: φ(q), (B, Hq, T, K); Hq is a multiple or a divisor of G. k: φ(k), (B, Gk, T, K); Gk divides G.
            v: (B, G, T, V).
            S, z: the state before, (B, G, K, V) and (B, G, K). A layer without the normalizer z has None for it.
            log_gate: log of the share that is kept of S and z, at most 0: (B or 1, G, T or 1, 1 or K), one number a
                head or one a key channel.
            beta: (B, G, T, 1), the rate of the delta rule, which has no z.
            erase: of rules with an erase vector of its own, which have no beta and no z: (B, G, T, K) each.

        Returns:
            φ(q)ᵀS (B, H, T, V), φ(q)·z (B, H, T, 1), and the state after, S and z; None for what is of no z. H is the
            larger of Hq and G; heads that share a query or a key head stand side by side.
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
        # the outer product as a MatMul: a broadcasting Mul of [·, K, 1] was silently wrong on one accelerator
        S = self.accumulate(S, self.matmul(self.reshape(k, (0, 0, K, 1)), v))
        rows = self.group_queries(q, G)  # (B, G, R, K)
        numerator = self.ungroup_queries(self.matmul(rows, S), q.shape[1])
        if z is None:
            return numerator, None, S, None
        denominator, z = self._step_normalizer(q, k, z, kept)
        return numerator, denominator, S, z

    def normalizer(self, q: T, k: T, z: T, log_gate: T | None = None) -> tuple[T, T]:
        """What `linear_attention` does with z alone: the same arguments -> φ(q)·z (B, H, T, 1), and z after."""
        if not self.many:
            return self._step_normalizer(*self._spread(q, k, z.shape[1]), z, self._left_of_state(log_gate))
        ones = self.add(self.mul(self.mean(k), 0.0), 1.0)  # z is the state of a value that is always 1
        ones = self.repeat_heads(ones, z.shape[1])
        denominator, _, z, _ = self.linear_attention(q, k, ones, self.unsqueeze(z, -1), None, log_gate)
        return denominator, self.squeeze(z, -1)

    def _spread(self, q: T, k: T, heads: int) -> tuple[T, T]:
        """q and k with a head for each of the state's `heads`, where these share theirs."""
        return q if q.shape[1] > heads else self.repeat_heads(q, heads), self.repeat_heads(k, heads)

    def _left_of_state(self, log_gate: T | None) -> T | None:
        """The share of S that a step keeps, (B or 1, G, 1, 1) or (B or 1, G, K, 1)."""
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
        """y_t = exp(log_gate_t) ⊙ y_{t-1} + x_t, number by number (RG-LRU: De et al. 2024, arXiv 2402.19427, eq. 4).

        Args:
            x, log_gate: rows (N, D), log_gate at most 0. state: y before, (B, D).

        Returns:
            y, rows (N, D), and y after the last token (B, D).
        """
        if self.many:
            return self.linear_recurrence_many(x, log_gate, state)
        y = self.add(self.mul(state, self.exp(log_gate)), x)
        return y, y


def update_rule(log_gate: Any | None, beta: Any | None) -> str:
    """The name that ONNX's LinearAttention has for the rule which these make."""
    return "_".join(name for name, part in (("gated", log_gate), ("delta", beta)) if part is not None) or "linear"

"""Update rules of linear attention, named as in ONNX's LinearAttention operator.

    linear       S_t = S_{t-1} + k_t v_tᵀ                               Katharopoulos et al. 2020, arXiv 2006.16236
    gated        S_t = g_t S_{t-1} + k_t v_tᵀ                           Sun et al. 2023, arXiv 2307.08621
    delta        S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ          Schlag et al. 2021, arXiv 2102.11174
    gated_delta  S_t = g_t S_{t-1} + β_t k_t (v_t - g_t S_{t-1}ᵀ k_t)ᵀ  Yang et al. 2024, arXiv 2412.06464

    erase        S_t = (I + e_t r_tᵀ) D_t S_{t-1} + k_t v_tᵀ            Peng et al. 2025, arXiv 2503.14456 (RWKV-7)

with o_t = q_tᵀ S_t. q and k are features; β in [0, 1] is per head and token, g in (0, 1] per head or per key channel:
g_t S is D_t S, D_t = diag(g_t) (Yang et al. 2024, arXiv 2312.06635; Kimi Team 2025, arXiv 2510.26692). The delta rules
require keys of unit length; longer keys make the state diverge.

The erase rule has no name in the operator and generalizes the others: with r = k, e = -βk and βv for v it is
gated_delta. RWKV-7 reads the state before its decay: r = κ̂ / g.

Each rule has two equivalent forms: single tokens (`Ops.linear_attention`), and T tokens in chunks, here; the chunks of
torch are in t2r_export.model.chunks, those of graphs in t2r_export.graph.pieces. In a chunk with initial state S_0 and
Γ_ij = D_{j+1} ⋯ D_i,

    S_i = Γ_i0 S_0 + Σ_{j≤i} Γ_ij k_j u_jᵀ
    u_i = v_i, or β_i (v_i - S_0ᵀ Γ_i0 k_i - Σ_{j<i} (k_iᵀ Γ_ij k_j) u_j) for the delta rules,

a triangular system per chunk (the WY form, Yang et al. 2024, arXiv 2406.06484 and 2412.06464), linear in S_0 and solved
for all chunks in parallel. For the erase rule the sum has a second term Γ_ij e_j p_jᵀ, and the system determines the
reads p_i = S_0ᵀ Γ_i0 r_i + Σ_{j<i} ((r_iᵀ Γ_ij k_j) v_j + (r_iᵀ Γ_ij e_j) p_j).
"""

from __future__ import annotations

from functools import reduce
from typing import Generic, NamedTuple

import numpy as np

from t2r_export.model.decays import Decay, decay_of
from t2r_export.model.ops import Erase
from t2r_export.model.pieces import Pieces, triangle
from t2r_export.model.primitives import T


def linear_attention(
    pieces: Pieces[T], q: T, k: T, v: T, S: T, z: T | None, log_gate: T | None, beta: T | None, erase: Erase[T] | None
) -> tuple[T, T | None, T, T | None]:
    """`Ops.linear_attention` over T tokens, with one product per piece."""
    ops, H = pieces.ops, q.shape[1]
    _, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(H, int) and isinstance(K, int) and isinstance(V, int)
    rows = pieces.rows(q, G)
    k, v = pieces.cut(k), pieces.cut(v) if z is None else pieces.with_ones(v)  # (X, C, K), (X, C, V+1)
    decay = decay_of(pieces, log_gate)
    writes = [Write(k, v)]
    if beta is not None:
        writes = [_corrected(k, v, pieces.per_token(beta), decay)]
    if erase is not None:
        writes.append(_read(k, v, Erase(*map(pieces.cut, erase)), decay))
    scores = [decay.scores(rows, write.along) for write in writes]
    ends = [decay.to_end(write.along) for write in writes]
    carry = decay.carry
    # z is the state of a value that is always 1
    state = S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])
    for write, end in zip(writes, ends, strict=True):
        if write.read is not None:
            kept = ops.constant(np.eye(K), "float32", f"eye_{K}")
            carry = ops.sub(kept if carry is None else ops.mul(kept, carry), ops.matmul(end, write.read))  # (X, K, K)
    added = [ops.matmul(end, write.values) for write, end in zip(writes, ends, strict=True)]
    before, after = pieces.states(state, reduce(ops.add, added), carry)
    seen = [ops.matmul(score, write.after(before, pieces)) for score, write in zip(scores, writes, strict=True)]
    both = pieces.add_product(reduce(ops.add, seen), decay.from_start(rows), before)
    both = pieces.heads(both, H)  # (B, H, T, V+1)
    if z is None:
        return both, None, after, None
    numerator, denominator = ops.split(both, [V, 1])
    S, z = ops.split(after, [V, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


class Write(NamedTuple, Generic[T]):
    """The contribution of a piece's tokens: Σ_j Γ_ij along_j (values - read S_0)_jᵀ."""

    along: T  # (X, C, K)
    values: T  # (X, C, V)
    read: T | None = None  # (X, C, K)

    def after(self, before: T, pieces: Pieces[T]) -> T:
        """values - read S_0 (X, C, V)."""
        return self.values if self.read is None else pieces.add_product(self.values, self.read, before, -1)


def _corrected(k: T, v: T, rate: T, decay: Decay[T]) -> Write[T]:
    """The values of the delta rules, by solving their triangular system."""
    ops = decay.ops
    system = ops.mul(decay.scores(k, k), rate)
    right = ops.mul(ops.concat([v, decay.from_start(k)]), rate)
    values, read = ops.split(decay.pieces.solve(system, right), [v.shape[-1], k.shape[-1]])
    return Write(k, values, read)


def _read(k: T, v: T, erase: Erase[T], decay: Decay[T]) -> Write[T]:
    """Reads and writes for an erase vector that is not the key, by solving the triangular system."""
    ops = decay.ops
    # token i reads the decayed state before its own writes
    written = decay.pieces.masked(decay.scores(erase.read, k), "before", triangle(decay.pieces.capacity, -1))
    system = ops.mul(decay.scores(erase.read, erase.write), -1.0)
    right = ops.concat([ops.matmul(written, v), ops.mul(decay.from_start(erase.read), -1.0)])
    values, read = ops.split(decay.pieces.solve(system, right), [v.shape[-1], k.shape[-1]])
    return Write(erase.write, values, read)

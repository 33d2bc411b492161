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

Each rule has two equivalent forms: single tokens (`Ops.linear_attention`), and T tokens in chunks, for torch here and
for graphs in t2r_export.graph.prefill. In a chunk with initial state S_0 and Γ_ij = D_{j+1} ⋯ D_i,

    S_i = Γ_i0 S_0 + Σ_{j≤i} Γ_ij k_j u_jᵀ
    u_i = v_i, or β_i (v_i - S_0ᵀ Γ_i0 k_i - Σ_{j<i} (k_iᵀ Γ_ij k_j) u_j) for the delta rules,

a triangular system per chunk (the WY form, Yang et al. 2024, arXiv 2406.06484 and 2412.06464), linear in S_0 and solved
for all chunks in parallel. For the erase rule the sum has a second term Γ_ij e_j p_jᵀ, and the system determines the
reads p_i = S_0ᵀ Γ_i0 r_i + Σ_{j<i} ((r_iᵀ Γ_ij k_j) v_j + (r_iᵀ Γ_ij e_j) p_j).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model import kernels
from t2r_export.model.decays import ChannelDecay, Decay, HeadDecay
from t2r_export.model.ops import Erase


def chunked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    log_gate: Tensor | None = None,
    beta: Tensor | None = None,
    erase: Erase[Tensor] | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear attention over T tokens; memory O(T·K·V/chunk + T·chunk).

    Args:
        q: (B, H, T, K); G divides H.
        k: (B, G, T, K).
        v: (B, G, T, V). A last column of ones, with z as the last column of S, computes the denominator (not for the
            delta rules).
        S: (B, G, K, V), the state before.
        log_gate: log g, at most 0, (B, G, T, 1) or (B, G, T, K), for the gated rules.
        beta: (B, G, T, 1), for the delta rules.
        erase: (B, G, T, K) each, for the erase rule; requires beta=None.
        chunk: tokens per chunk; default `chunk_size`, or that of a kernel (t2r_export.model.kernels).

    Returns:
        o (B, H, T, V) and the state after, in float32, or float64 if v is float64: bfloat16 sums stop growing after 256
        equal terms.
    """
    if erase is None and chunk is None and (kernel := kernels.kernel(q, v, S, log_gate, beta)) is not None:
        return kernels.attention(kernel, q, k, v, S, log_gate, beta)
    B, H, T, K = q.shape
    G, V = v.shape[1], v.shape[3]
    R = H // G
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        C = min(chunk or chunk_size(K, V, R), T)
        # X = B·G·N blocks: one batched product for all chunks and kv heads
        q, k, v = (_blocks(t.to(wide), G, C) for t in (q, k, v))  # (X, R·C, K), (X, C, K), (X, C, V)
        decay = Decay(C, v)
        if log_gate is not None:
            gates = _blocks(log_gate.to(wide), G, C)
            decay = HeadDecay(gates) if gates.shape[-1] == 1 else ChannelDecay(gates)
        scores, k_end, read, carry = decay.scores(q, k), decay.to_end(k), None, decay.carry
        if beta is not None:
            v, read = _delta(k, v, _blocks(beta.to(wide), G, C), decay)
        if erase is not None:
            e = Erase(*(_blocks(t.to(wide), G, C) for t in erase))
            v, read = _erased(k, v, e, decay)
            scores = torch.cat([scores, decay.scores(q, e.write)], dim=2)
            k_end = torch.cat([k_end, decay.to_end(e.write)], dim=1)
        if read is not None:
            kept = torch.eye(K, dtype=wide, device=q.device)
            carry = (kept if carry is None else kept * carry) - torch.bmm(k_end.mT, read)
        states = _states(S.to(wide), torch.bmm(k_end.mT, v), carry)  # (B, G, N+1, K, V)
        before = states[:, :, :-1].reshape(-1, K, V)
        u = v if read is None else torch.baddbmm(v, read, before, alpha=-1)
        o = torch.baddbmm(torch.bmm(scores, u), decay.from_start(q), before)
        o = o.view(B, G, -1, R, C, V).transpose(2, 3).reshape(B, H, -1, V)
        return o[:, :, :T], states[:, :, -1]


def scanned(x: Tensor, log_gate: Tensor, state: Tensor) -> Tensor:
    """y_t = exp(log_gate_t) ⊙ y_{t-1} + x_t elementwise, by recursive doubling in log₂ T steps.

    Args:
        x, log_gate: (B, T, D); log_gate is at most 0.
        state: y before, (B, D).

    Returns:
        y (B, T, D), float32, or float64 if the state is float64.
    """
    wide = torch.float64 if state.dtype == torch.float64 else torch.float32
    y = torch.cat([state.to(wide).unsqueeze(1), x.to(wide)], dim=1)
    sums = F.pad(log_gate.to(wide), (0, 0, 1, 0))  # of the gates of the last 1, 2, 4 … tokens
    behind = 1
    while behind < y.shape[1]:
        y = y + F.pad(sums[:, behind:].exp() * y[:, :-behind], (0, 0, behind, 0))
        sums = sums + F.pad(sums[:, :-behind], (0, 0, behind, 0))
        behind *= 2
    return y[:, 1:]


def scanned_complex(x: Tensor, factor: Tensor, state: Tensor) -> Tensor:
    """y_t = a y_{t-1} + x_t elementwise, of complex numbers as real parts and then imaginary parts.

    Args:
        x: (B, T, 2·D). factor: a, (2·D,), at most 1 in size.
        state: y before, (B, 2·D).

    Returns:
        y (B, T, 2·D), float32, or float64 if the state is float64.
    """
    wide = torch.float64 if state.dtype == torch.float64 else torch.float32
    joined = torch.cat([state.to(wide).unsqueeze(1), x.to(wide)], dim=1)
    y, a = (torch.complex(*numbers.chunk(2, -1)) for numbers in (joined, factor.to(wide)))
    behind = 1
    while behind < y.shape[1]:
        y = y + F.pad(a * y[:, :-behind], (0, 0, behind, 0))
        a, behind = a * a, 2 * behind
    return torch.cat([y.real, y.imag], dim=-1)[:, 1:]


def _blocks(x: Tensor, G: int, C: int) -> Tensor:
    """x (B, heads, T, size) -> N zero-padded chunks of C tokens (B·G·N, heads/G·C, size).

    Zero keys, log gates and rates leave the state unchanged.
    """
    B, heads, T, size = x.shape
    x = F.pad(x, (0, 0, 0, -T % C)) if T % C else x
    x = x.reshape(B, G, heads // G, -1, C, size).transpose(2, 3)
    return x.reshape(-1, heads // G * C, size)


def _delta(k: Tensor, v: Tensor, beta: Tensor, decay: Decay) -> tuple[Tensor, Tensor]:
    """Solve the delta rules' triangular system for unknown S_0.

    Returns:
        a (X, C, V) and W (X, C, K) with u = a - W S_0.
    """
    system = decay.scores(k, k, beta)  # unitriangular: diagonal and above are ignored
    right = beta * torch.cat([v, decay.from_start(k)], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _erased(k: Tensor, v: Tensor, erase: Erase[Tensor], decay: Decay) -> tuple[Tensor, Tensor]:
    """Solve the erase rule's triangular system, for v and the reads.

    Returns:
        a (X, 2·C, V) and W (X, 2·C, K) with u = a - W S_0, written along [k; erase.write].
    """
    # token i reads the decayed state before its own writes
    written, system = (decay.scores(erase.read, x).tril(-1) for x in (k, erase.write))
    right = torch.cat([torch.bmm(written, v), decay.from_start(erase.read)], dim=-1)
    solved = torch.linalg.solve_triangular(-system, right, upper=False, unitriangular=True)
    read, W = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    return torch.cat([v, read], dim=1), torch.cat([torch.zeros_like(k), -W], dim=1)


def _states(start: Tensor, added: Tensor, carry: Tensor | None) -> Tensor:
    """The states before each of N chunks and after the last.

    Args:
        start: (B, G, K, V).
        added: (B·G·N, K, V), the contribution of each chunk.
        carry: transition of each chunk: the identity (None), factors (B·G·N, 1 or K, 1), or matrices (B·G·N, K, K).

    Returns:
        (B, G, N+1, K, V).
    """
    B, G, K, V = start.shape
    added = added.view(B, G, -1, K, V)
    if carry is None:
        return torch.cat([start.unsqueeze(2), added], dim=2).cumsum(dim=2)
    carry = carry.view(*added.shape[:3], *carry.shape[1:])
    states = [start]
    for chunk in range(added.shape[2]):
        kept = carry[:, :, chunk]
        before = kept @ states[-1] if kept.shape[-1] == K else kept * states[-1]
        states.append(before + added[:, :, chunk])
    return torch.stack(states, dim=2)


def chunk_size(K: int, V: int, R: int) -> int:
    """Tokens per chunk, a power of two from 16 to 128, that balances the memory of scores (R·C per token) and states
    (K·V/C per token)."""
    balanced = math.sqrt(K * V / R)
    return min(max(1 << math.ceil(math.log2(max(balanced, 1.0))), 16), 128)

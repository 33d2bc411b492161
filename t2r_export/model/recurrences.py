"""How the state of linear attention takes in a token: the update rules, named as in ONNX's LinearAttention operator.

    linear       S_t = S_{t-1} + k_t v_tᵀ                               Katharopoulos et al. 2020, arXiv 2006.16236
    gated        S_t = g_t S_{t-1} + k_t v_tᵀ                           Sun et al. 2023, arXiv 2307.08621
    delta        S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ          Schlag et al. 2021, arXiv 2102.11174
    gated_delta  S_t = g_t S_{t-1} + β_t k_t (v_t - g_t S_{t-1}ᵀ k_t)ᵀ  Yang et al. 2024, arXiv 2412.06464

and o_t = q_tᵀ S_t in all of them. q and k are features; g in (0, 1] and β in [0, 1] are one number a kv head and token.
The delta rules need keys of length 1: a longer one turns what it should correct into growth.

Each rule has two forms of the same function: one token in the operators of a graph (`Ops.linear_attention`), and T
tokens as matrix products over chunks, here for torch and in t2r_export.graph.prefill for a graph. Inside a chunk that
starts from S_0, with Γ_ij = g_{j+1} ⋯ g_i,

    S_i = Γ_i0 S_0 + Σ_{j≤i} Γ_ij k_j u_jᵀ
    u_i = v_i, or β_i (v_i - Γ_i0 S_0ᵀ k_i - Σ_{j<i} Γ_ij (k_i·k_j) u_j) for the delta rules,

which is one triangular system a chunk (the WY form, Yang et al. 2024, arXiv 2406.06484 and 2412.06464), solved for all
chunks at once, and linear in S_0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def chunked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    log_gate: Tensor | None = None,
    beta: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """T tokens by the update rule that log_gate and beta make: memory O(T·K·V/chunk + T·chunk), linear in T.

    Args:
        q: (B, H, T, K). k: (B, G, T, K). v: (B, G, T, V). G divides H. A last column of ones in v, with z as the
            last column of S, carries the denominator along (not for the delta rules).
        S: (B, G, K, V), the state before the first token.
        log_gate: log g, at most 0, (B, G, T, 1), for the gated rules. Only sums of it are taken, so a decay to
            nothing neither overflows nor costs its neighbours precision.
        beta: (B, G, T, 1), for the delta rules.
        chunk: tokens treated as one block; by default what `chunk_size` says.

    Returns:
        o (B, H, T, V) and the state after the last token. float32, or float64 where v is: states may only ever
        grow, and bfloat16 would stop counting at 256 equal terms.
    """
    B, H, T, K = q.shape
    G, V = v.shape[1], v.shape[3]
    R = H // G
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        C = min(chunk or chunk_size(K, V, R), T)
        # X = B·G·N blocks: one batched product for all chunks and kv heads
        q, k, v = (_blocks(t.to(wide), G, C) for t in (q, k, v))  # (X, R·C, K), (X, C, K), (X, C, V)
        # a product with a mask: tril of a batch is several times slower on the CPU
        share = torch.ones(C, C, dtype=wide, device=q.device).tril()  # of what token j wrote, how much i still sees
        q_start, k_start, k_end, carry, read = q, k, k, None, None
        if log_gate is not None:
            left = _left(_blocks(log_gate.to(wide), G, C))  # Γ (X, C+1, C+1); 0 is the chunk's start
            share, start = left[:, 1:, 1:], left[:, 1:, :1]
            q_start, k_start = q * start.repeat(1, R, 1), k * start
            k_end, carry = k * left[:, -1, 1:, None], left[:, -1:, :1]
        if beta is not None:
            v, read = _solved(k, v, k_start, _blocks(beta.to(wide), G, C), share)
            kept = torch.eye(K, dtype=wide, device=q.device)
            carry = (kept if carry is None else kept * carry) - torch.bmm(k_end.mT, read)
        states = _states(S.to(wide), torch.bmm(k_end.mT, v), carry)  # (B, G, N+1, K, V)
        before = states[:, :, :-1].reshape(-1, K, V)
        u = v if read is None else torch.baddbmm(v, read, before, alpha=-1)
        scores = torch.bmm(q, k.mT) * share.repeat(*[1] * (share.ndim - 2), R, 1)
        o = torch.baddbmm(torch.bmm(scores, u), q_start, before)
        o = o.view(B, G, -1, R, C, V).transpose(2, 3).reshape(B, H, -1, V)
        return o[:, :, :T], states[:, :, -1]


def _blocks(x: Tensor, G: int, C: int) -> Tensor:
    """x (B, heads, T, size) -> (B·G·N, heads/G·C, size): N chunks of C tokens, the last one filled up with zeros.

    A zero key, log gate and β add nothing to the state, and the outputs of zero queries are cut off.
    """
    B, heads, T, size = x.shape
    x = F.pad(x, (0, 0, 0, -T % C)) if T % C else x
    x = x.reshape(B, G, heads // G, -1, C, size).transpose(2, 3)
    return x.reshape(-1, heads // G * C, size)


def _left(log_gate: Tensor) -> Tensor:
    """log g (X, C, 1) -> Γ (X, C+1, C+1): Γ_ij = g_{j+1} ⋯ g_i for j ≤ i, counted from 1, and 0 for j > i.

    Every sum is taken over its own gates ("segsum", Dao and Gu 2024, 2405.21060). A difference of two cumulative sums
    would be inexact behind a strong decay, and its exponential would overflow above the diagonal.
    """
    size = log_gate.shape[1] + 1
    lower = torch.ones(size, size, dtype=log_gate.dtype, device=log_gate.device).tril()
    sums = (F.pad(log_gate, (0, 0, 1, 0)) * lower.tril(-1)).cumsum(1)
    return sums.exp() * lower


def _solved(k: Tensor, v: Tensor, k_start: Tensor, beta: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rules' triangular system, solved for what does not depend on the chunk's first state S_0.

    Returns:
        a (X, C, V) and W (X, C, K) with u = a - W S_0.
    """
    system = beta * torch.bmm(k, k.mT) * share  # its diagonal is taken to be 1, and what is above is not read
    right = beta * torch.cat([v, k_start], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _states(start: Tensor, added: Tensor, carry: Tensor | None) -> Tensor:
    """The states before each of N chunks, and after the last.

    Args:
        start: (B, G, K, V). added: (B·G·N, K, V), what each chunk adds.
        carry: what each chunk leaves of the state before it: all (None), a share (B·G·N, 1, 1), or a linear function
            (B·G·N, K, K).

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
    """Tokens a chunk for which the scores (R·C a token) and the states (K·V/C a token) take about the same memory.

    A power of two from 16 to 128. Small models gain most from small chunks.
    """
    balanced = math.sqrt(K * V / R)
    return min(max(1 << math.ceil(math.log2(max(balanced, 1.0))), 16), 128)

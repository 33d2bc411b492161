"""How the state of linear attention takes in a token: the update rules, named as in ONNX's LinearAttention operator.

    linear       S_t = S_{t-1} + k_t v_tᵀ                               Katharopoulos et al. 2020, arXiv 2006.16236
    gated        S_t = g_t S_{t-1} + k_t v_tᵀ                           Sun et al. 2023, arXiv 2307.08621
    delta        S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ          Schlag et al. 2021, arXiv 2102.11174
    gated_delta  S_t = g_t S_{t-1} + β_t k_t (v_t - g_t S_{t-1}ᵀ k_t)ᵀ  Yang et al. 2024, arXiv 2412.06464

    erase        S_t = (I + e_t r_tᵀ) D_t S_{t-1} + k_t v_tᵀ            Peng et al. 2025, arXiv 2503.14456 (RWKV-7)

and o_t = q_tᵀ S_t in all of them. q and k are features; β in [0, 1] is one number a head and token, g in (0, 1] is one
number a head or one a key channel: g_t S is D_t S, D_t = diag(g_t) (Yang et al. 2024, arXiv 2312.06635; Kimi Team 2025,
arXiv 2510.26692). The delta rules need keys of length 1: a longer one turns what it should correct into growth.

The last rule has no name in the operator, and contains the others: with r = k, e = -βk and βv in place of v it is
gated_delta. RWKV-7 reads the state before its decay: r = κ̂ / g.

Each rule has two forms of the same function: one token in the operators of a graph (`Ops.linear_attention`), and T
tokens as matrix products over chunks, here for torch and in t2r_export.graph.prefill for a graph. Inside a chunk that
starts from S_0, with Γ_ij = D_{j+1} ⋯ D_i,

    S_i = Γ_i0 S_0 + Σ_{j≤i} Γ_ij k_j u_jᵀ
    u_i = v_i, or β_i (v_i - S_0ᵀ Γ_i0 k_i - Σ_{j<i} (k_iᵀ Γ_ij k_j) u_j) for the delta rules,

which is one triangular system a chunk (the WY form, Yang et al. 2024, arXiv 2406.06484 and 2412.06464), solved for all
chunks at once, and linear in S_0. With an erase vector of its own the sum has a second term, Γ_ij e_j p_jᵀ, and the
system is that of what each token reads, p_i = S_0ᵀ Γ_i0 r_i + Σ_{j<i} ((r_iᵀ Γ_ij k_j) v_j + (r_iᵀ Γ_ij e_j) p_j).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

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
    """T tokens by the update rule that log_gate, beta and erase make: memory O(T·K·V/chunk + T·chunk), linear in T.

    Args:
        q: (B, H, T, K). k: (B, G, T, K). v: (B, G, T, V). G divides H. A last column of ones in v, with z as the
            last column of S, carries the denominator along (not for the delta rules).
        S: (B, G, K, V), the state before the first token.
        log_gate: log g, at most 0, (B, G, T, 1) or (B, G, T, K), for the gated rules.
        beta: (B, G, T, 1), for the delta rules.
        erase: (B, G, T, K) each, for rules that erase along a vector of its own. Not with beta.
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
    """y_t = exp(log_gate_t) ⊙ y_{t-1} + x_t for each number, by doubling: log₂ T sums of what stands 1, 2, 4 … before.

    Args:
        x, log_gate: (B, T, D), log_gate at most 0. state: y before the first token, (B, D).

    Returns:
        y (B, T, D), float32, or float64 where the state is.
    """
    wide = torch.float64 if state.dtype == torch.float64 else torch.float32
    y = torch.cat([state.to(wide).unsqueeze(1), x.to(wide)], dim=1)
    sums = F.pad(log_gate.to(wide), (0, 0, 1, 0))  # each over the gates of its own last 1, 2, 4 … tokens
    behind = 1
    while behind < y.shape[1]:
        y = y + F.pad(sums[:, behind:].exp() * y[:, :-behind], (0, 0, behind, 0))
        sums = sums + F.pad(sums[:, :-behind], (0, 0, behind, 0))
        behind *= 2
    return y[:, 1:]


def _blocks(x: Tensor, G: int, C: int) -> Tensor:
    """x (B, heads, T, size) -> (B·G·N, heads/G·C, size): N chunks of C tokens, the last one filled up with zeros.

    A zero key, log gate and β add nothing to the state, and the outputs of zero queries are cut off.
    """
    B, heads, T, size = x.shape
    x = F.pad(x, (0, 0, 0, -T % C)) if T % C else x
    x = x.reshape(B, G, heads // G, -1, C, size).transpose(2, 3)
    return x.reshape(-1, heads // G * C, size)


def _delta(k: Tensor, v: Tensor, beta: Tensor, decay: Decay) -> tuple[Tensor, Tensor]:
    """The delta rules' triangular system, solved for what does not depend on the chunk's first state S_0.

    Returns:
        a (X, C, V) and W (X, C, K) with u = a - W S_0.
    """
    system = decay.scores(k, k, beta)  # its diagonal is taken to be 1, and what is above is not read
    right = beta * torch.cat([v, decay.from_start(k)], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def _erased(k: Tensor, v: Tensor, erase: Erase[Tensor], decay: Decay) -> tuple[Tensor, Tensor]:
    """The same where the erase vector is not the key: of v and of what each token reads, one below the other.

    Returns:
        a (X, 2·C, V) and W (X, 2·C, K) with u = a - W S_0, which is written along [k; erase.write].
    """
    # token i reads the decayed state before its own writes
    written, system = (decay.scores(erase.read, x).tril(-1) for x in (k, erase.write))
    right = torch.cat([torch.bmm(written, v), decay.from_start(erase.read)], dim=-1)
    solved = torch.linalg.solve_triangular(-system, right, upper=False, unitriangular=True)
    read, W = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    return torch.cat([v, read], dim=1), torch.cat([torch.zeros_like(k), -W], dim=1)


def _states(start: Tensor, added: Tensor, carry: Tensor | None) -> Tensor:
    """The states before each of N chunks, and after the last.

    Args:
        start: (B, G, K, V). added: (B·G·N, K, V), what each chunk adds.
        carry: what each chunk leaves of the state before it: all (None), a share (B·G·N, 1 or K, 1), or a linear
            function (B·G·N, K, K).

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

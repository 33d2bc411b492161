"""How the state of linear attention takes in a token: the update rules, named as in ONNX's LinearAttention operator.

    linear       S_t = S_{t-1} + k_t v_tᵀ                               Katharopoulos et al. 2020, arXiv 2006.16236
    gated        S_t = g_t S_{t-1} + k_t v_tᵀ                           Sun et al. 2023, arXiv 2307.08621
    delta        S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ          Schlag et al. 2021, arXiv 2102.11174
    gated_delta  S_t = g_t S_{t-1} + β_t k_t (v_t - g_t S_{t-1}ᵀ k_t)ᵀ  Yang et al. 2024, arXiv 2412.06464

and o_t = q_tᵀ S_t in all of them. q and k are features; g in (0, 1] and β in [0, 1] are one number a kv head and token.
The delta rules need keys of length 1: a longer one turns what it should correct into growth.

Each rule has two forms of the same function. `step` is one token in the operators of a graph. `parallel` is T tokens
as matrix products over chunks. Inside a chunk that starts from S_0, with Γ_ij = g_{j+1} ⋯ g_i,

    S_i = Γ_i0 S_0 + Σ_{j≤i} Γ_ij k_j u_jᵀ
    u_i = v_i, or β_i (v_i - Γ_i0 S_0ᵀ k_i - Σ_{j<i} Γ_ij (k_i·k_j) u_j) for the delta rules,

which is one triangular system a chunk (the WY form, Yang et al. 2024, arXiv 2406.06484 and 2412.06464), solved for all
chunks at once, and linear in S_0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.config.mixers import Guard
from t2r_export.model.ops import TORCH, TorchOps, update_rule


@dataclass(frozen=True)
class Recurrence:
    """One update rule: whether the state decays, and whether a key's old value is taken out before the new one."""

    gated: bool
    delta: bool

    def step(
        self, q: Any, k: Any, v: Any, S: Any, z: Any, log_gate: Any = None, beta: Any = None, ops: TorchOps = TORCH
    ) -> tuple[Any, Any, Any, Any]:
        """One token; arguments and results are those of `TorchOps.linear_attention`."""
        self._check(log_gate, beta)
        return ops.linear_attention(q, k, v, S, z, log_gate, beta)

    def parallel(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S: Tensor,
        log_gate: Tensor | None = None,
        beta: Tensor | None = None,
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """T tokens: memory O(T·K·V/chunk + T·chunk), linear in T.

        Args:
            q: (B, T, H, K). k: (B, T, G, K). v: (B, T, G, V). G divides H. A last column of ones in v, with z as the
                last column of S, carries the denominator along (not for the delta rules).
            S: (B, G, K, V), the state before the first token.
            log_gate: log g, at most 0, (B, T, G), for the gated rules. Only sums of it are taken, so a decay to
                nothing neither overflows nor costs its neighbours precision.
            beta: (B, T, G), for the delta rules.
            chunk: tokens treated as one block; by default what `chunk_size` says.

        Returns:
            o (B, T, H, V) and the state after the last token. float32, or float64 where v is: states may only ever
            grow, and bfloat16 would stop counting at 256 equal terms.
        """
        self._check(log_gate, beta)
        B, T, H, K = q.shape
        G, V = v.shape[2:]
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
                left = _left(_blocks(log_gate.to(wide).unsqueeze(-1), G, C))  # Γ (X, C+1, C+1); 0 is the chunk's start
                share, start = left[:, 1:, 1:], left[:, 1:, :1]
                q_start, k_start = q * start.repeat(1, R, 1), k * start
                k_end, carry = k * left[:, -1, 1:, None], left[:, -1:, :1]
            if beta is not None:
                v, read = _solved(k, v, k_start, _blocks(beta.to(wide).unsqueeze(-1), G, C), share)
                kept = torch.eye(K, dtype=wide, device=q.device)
                carry = (kept if carry is None else kept * carry) - torch.bmm(k_end.mT, read)
            states = _states(S.to(wide), torch.bmm(k_end.mT, v), carry)  # (B, G, N+1, K, V)
            before = states[:, :, :-1].reshape(-1, K, V)
            u = v if read is None else torch.baddbmm(v, read, before, alpha=-1)
            scores = torch.bmm(q, k.mT) * share.repeat(*[1] * (share.ndim - 2), R, 1)
            o = torch.baddbmm(torch.bmm(scores, u), q_start, before)
            o = o.view(B, G, -1, R, C, V).permute(0, 2, 4, 1, 3, 5).reshape(B, -1, H, V)
            return o[:, :T], states[:, :, -1]

    def _check(self, log_gate: Any, beta: Any) -> None:
        assert (log_gate is not None, beta is not None) == (self.gated, self.delta), (
            "a gate and beta as the rule has them"
        )


RECURRENCES = {
    "linear": Recurrence(gated=False, delta=False),
    "gated": Recurrence(gated=True, delta=False),
    "delta": Recurrence(gated=False, delta=True),
    "gated_delta": Recurrence(gated=True, delta=True),
}


def _blocks(x: Tensor, G: int, C: int) -> Tensor:
    """x (B, T, heads, size) -> (B·G·N, heads/G·C, size): N chunks of C tokens, the last one filled up with zeros.

    A zero key, log gate and β add nothing to the state, and the outputs of zero queries are cut off.
    """
    B, T, heads, size = x.shape
    pad = -T % C
    x = F.pad(x, (0, 0, 0, 0, 0, pad)) if pad else x
    x = x.view(B, (T + pad) // C, C, G, heads // G, size).permute(0, 3, 1, 4, 2, 5)
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


def guarded(denominator: Any, guard: Guard, ops: TorchOps = TORCH) -> Any:
    """The denominator kept from zero, as the config says."""
    return ops.maximum(denominator, guard.eps) if guard.kind == "clamp" else ops.add(denominator, guard.eps)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    z: Tensor | None,
    guard: Guard,
    chunk: int | None = None,
    log_gate: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """T tokens by the update rule that log_gate and beta make, and the division: see `Recurrence.parallel`.

    Args:
        q: φ(q), (B, T, H, K). k: φ(k), (B, T, G, K). v: (B, T, G, V). log_gate, beta: (B, T, G).
        S: (B, G, K, V) and z: (B, G, K), the state before the first token. Without the normaliser z: None, and o is
            φ(q)ᵀS.
        chunk: tokens treated as one block; by default what `chunk_size` says.

    Returns:
        o (B, T, H, V) and the state after the last token, S and z. float32, or float64 where v is.
    """
    rule = RECURRENCES[update_rule(log_gate, beta)]
    chunk = chunk or chunk_size(k.shape[-1], v.shape[-1], q.shape[2] // k.shape[2])
    if z is None:
        return *rule.parallel(q, k, v, S, log_gate, beta, chunk), None
    # z is the state of a value that is always 1: a last column of v and of S carries numerator and denominator
    both, after = rule.parallel(
        q, k, F.pad(v, (0, 1), value=1.0), torch.cat([S, z.unsqueeze(-1)], dim=-1), log_gate, beta, chunk
    )
    return both[..., :-1] / guarded(both[..., -1:], guard), after[..., :-1], after[..., -1]


def chunk_size(K: int, V: int, R: int) -> int:
    """Tokens a chunk for which the scores (R·C a token) and the states (K·V/C a token) take about the same memory.

    A power of two from 16 to 128. Small models gain most from small chunks.
    """
    balanced = math.sqrt(K * V / R)
    return min(max(1 << math.ceil(math.log2(max(balanced, 1.0))), 16), 128)

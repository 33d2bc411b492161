"""The parallel forms of recurrences over T tokens, computed by torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model import kernels
from t2r_export.model.ops import Erase
from t2r_export.model.pieces import Pieces
from t2r_export.model.recurrences import linear_attention
from t2r_export.model.torch_primitives import TorchPrimitives


def chunked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    log_gate: Tensor | None = None,
    beta: Tensor | None = None,
    erase: Erase[Tensor] | None = None,
    z: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Linear attention over T tokens; memory O(T·K·V/chunk + T·chunk).

    Args:
        q: (B, H, T, K); G divides H.
        k: (B, G, T, K).
        v: (B, G, T, V).
        S, z: (B, G, K, V) and (B, G, K), the states before; z is None without a normalizer.
        log_gate: log g, at most 0, (B, G, T, 1) or (B, G, T, K), for the gated rules.
        beta: (B, G, T, 1), for the delta rules; requires z=None.
        erase: (B, G, T, K) each, for the erase rule; requires z=None and beta=None.
        chunk: tokens per chunk; default `chunk_size`, or that of a kernel (t2r_export.model.kernels).

    Returns:
        o (B, H, T, V), q·z (B, H, T, 1), and S and z after, None for missing z; in float32, or float64 if v is float64:
        bfloat16 sums stop growing after 256 equal terms.
    """
    if erase is None and chunk is None and (kernel := kernels.kernel(q, v, S, log_gate, beta)) is not None:
        return kernels.attention(kernel, q, k, v, S, z, log_gate, beta)
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, S = (x.to(wide) for x in (q, k, v, S))
        z, log_gate, beta = (None if x is None else x.to(wide) for x in (z, log_gate, beta))
        erase = None if erase is None else Erase(*(x.to(wide) for x in erase))
        K, V, R = q.shape[-1], v.shape[-1], q.shape[1] // v.shape[1]
        size = min(chunk or chunk_size(K, V + (z is not None), R), q.shape[2])
        return linear_attention(Chunks(v, size), q, k, v, S, z, log_gate, beta, erase)


class _Blocks(TorchPrimitives):
    """Operators of blocks (X, ·, ·)."""

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        # without the views of torch.matmul, which are a tenth of the time of a short sequence
        return torch.bmm(a, b) if a.ndim == b.ndim else a @ b


class Chunks(Pieces[Tensor]):
    """Chunks of C tokens, the last one padded with zeros, as one axis X of B·G·N blocks: all products are batched.

    Zero keys, log gates and rates leave the state unchanged.

    Args:
        v: (B, G, T, V).
        size: C, at most T.
    """

    def __init__(self, v: Tensor, size: int) -> None:
        super().__init__(_Blocks(v), size)
        self.kv_heads, self.tokens = v.shape[1:3]

    def cut(self, x: Tensor) -> Tensor:
        return self.rows(x, self.kv_heads)

    def per_token(self, x: Tensor) -> Tensor:
        return self.cut(x)

    def with_ones(self, v: Tensor) -> Tensor:
        return self.cut(F.pad(v, (0, 1), value=1.0))

    def rows(self, q: Tensor, kv_heads: int) -> Tensor:
        B, heads, T, n = q.shape
        q = F.pad(q, (0, 0, 0, -T % self.capacity)) if T % self.capacity else q
        q = q.reshape(B, kv_heads, heads // kv_heads, -1, self.capacity, n).transpose(2, 3)
        return q.reshape(-1, heads // kv_heads * self.capacity, n)

    def heads(self, rows: Tensor, heads: int) -> Tensor:
        _, size, n = rows.shape
        C, G, N = self.capacity, self.kv_heads, -(-self.tokens // self.capacity)
        rows = rows.view(-1, G, N, size // C, C, n).transpose(2, 3)
        return rows.reshape(-1, heads, N * C, n)[:, :, : self.tokens]

    def by_head(self, rows: Tensor, factor: Tensor) -> Tensor:
        return rows * factor.repeat(1, rows.shape[1] // factor.shape[1], 1)

    def square(self, name: str, array: np.ndarray[Any, Any]) -> Tensor:
        return self.ops.constant(array, "float32", name)

    def masked(self, scores: Tensor, name: str, array: np.ndarray[Any, Any]) -> Tensor:
        return scores * self.square(name, array).repeat(scores.shape[1] // self.capacity, 1)

    def transposed(self, x: Tensor) -> Tensor:
        return x.mT

    def total(self, x: Tensor) -> Tensor:
        return x.sum(1).unsqueeze(-1)

    def add_product(self, x: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
        return torch.baddbmm(x, a, b, alpha=sign)

    def solve(self, system: Tensor, right: Tensor) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        return found

    def states(self, start: Tensor, added: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        B, G, K, W = start.shape
        added = added.view(B, G, -1, K, W)
        if carry is None:
            states = torch.cat([start.unsqueeze(2), added], dim=2).cumsum(dim=2)
        else:
            carry = carry.view(*added.shape[:3], *carry.shape[1:])
            each = [start]
            for chunk in range(added.shape[2]):
                kept = carry[:, :, chunk]
                before = kept @ each[-1] if kept.shape[-1] == K else kept * each[-1]
                each.append(before + added[:, :, chunk])
            states = torch.stack(each, dim=2)
        return states[:, :, :-1].reshape(-1, K, W), states[:, :, -1]


def chunk_size(K: int, V: int, R: int) -> int:
    """Tokens per chunk, a power of two from 16 to 128, that balances the memory of scores (R·C per token) and states
    (K·V/C per token)."""
    balanced = math.sqrt(K * V / R)
    return min(max(1 << math.ceil(math.log2(max(balanced, 1.0))), 16), 128)


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

"""The operators of t2r_export.model.ops, computed by torch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model.chunks import chunked_linear_attention, scanned, scanned_complex
from t2r_export.model.ops import Erase, Ops
from t2r_export.model.torch_primitives import TorchPrimitives

PRODUCTS = 512  # maximum keys for bfloat16 attention by matrix products on CPUs


def _use_one_thread() -> None:
    """Set up torch in a forked process, which has none of the threads of its parent's pools.

    OpenMP waits for them without end, and torch makes its pool anew on first use, where two threads collide.
    """
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_use_one_thread)


class TorchOps(TorchPrimitives, Ops[Tensor]):
    """Torch operators for a step or for T tokens.

    Args:
        tokens: T; None: a step.
        like: a weight, for the device and dtype of constants.
    """

    def __init__(self, tokens: int | None = None, like: Tensor | None = None) -> None:
        super().__init__(like)
        self.tokens = tokens

    @property
    def many(self) -> bool:
        return self.tokens is not None

    def flatten_tokens(self, x: Tensor) -> Tensor:
        return x.flatten(0, -2)

    def last_token(self, x: Tensor) -> Tensor:
        return x if self.tokens is None else x.unflatten(0, (-1, self.tokens))[:, -1]

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(-1, self.tokens or 1, heads, x.shape[-1] // heads).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).flatten(1)

    def advance(self, start: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.tokens or 1
        return start[:, None] + torch.arange(tokens, dtype=start.dtype, device=start.device), start + tokens

    def blocks(self, x: Tensor, size: int) -> Tensor:
        pad = -x.shape[2] % size
        x = F.pad(x, (0, 0, 0, pad)) if pad else x
        return x.reshape(*x.shape[:2], -1, size, x.shape[3])

    def unblock(self, x: Tensor) -> Tensor:
        return x.flatten(2, 3)[:, :, : self.tokens]

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None = None) -> Tensor:
        T, total = q.shape[2], k.shape[2]
        q, k = q.to(v.dtype), k.to(v.dtype)  # rotations are float32
        if softcap is not None or _products_are_faster(v):
            k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
            unseen = torch.full((T, total), -torch.inf, dtype=v.dtype, device=v.device).triu(total - T + 1)
            if softcap is None:
                scores = torch.baddbmm(unseen, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)
                scores = scores.view(*q.shape[:2], T, total)
            else:
                scores = self.soft_cap(q @ k.mT * scale, softcap) + unseen
            return torch.matmul(scores.softmax(-1), v)
        # no mask is needed without past tokens
        mask = None if T == total else _seen(T, total, q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    def causal_mask(self, past: Tensor, new: Tensor) -> Tensor:
        return (~_seen(new.shape[2], past.shape[2] + new.shape[2], new.device)).float()

    def cache_places(self, keys: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(keys.shape[2], dtype=torch.int32, device=keys.device)
        return places[-new.shape[2] :, None], places

    def padding_mask(self, x: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(x.shape[2], device=x.device)
        return (places >= lengths[:, None])[:, None, None].float()

    def lstm(self, x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        # without autocast, because states accumulate over the whole text
        with torch.autocast(x.device.type, enabled=False):
            rows = x.to(weights[0].dtype).unflatten(0, (len(h), -1))
            state = [h[None].contiguous(), c[None].contiguous()]
            y, h, c = torch.lstm(rows, state, list(weights), True, 1, 0.0, False, False, True)
        return y.to(x.dtype).flatten(0, 1), h[0], c[0]

    def gru(self, x: Tensor, h: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            rows = x.to(weights[0].dtype).unflatten(0, (len(h), -1))
            y, h = torch.gru(rows, h[None].contiguous(), list(weights), True, 1, 0.0, False, False, True)
        return y.to(x.dtype).flatten(0, 1), h[0]

    def linear_attention_chunks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S: Tensor,
        z: Tensor | None,
        log_gate: Tensor | None,
        beta: Tensor | None,
        erase: Erase[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        if log_gate is not None:
            log_gate = log_gate.expand(len(v), -1, v.shape[2], -1)
        return chunked_linear_attention(q, k, v, S, log_gate, beta, erase, z)

    def linear_recurrence_many(self, x: Tensor, log_gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = x.unflatten(0, (len(state), -1))
        rows = len(log_gate) // x.shape[1] or 1  # 1: the same for all tokens
        y = scanned(x, log_gate.unflatten(0, (rows, -1)).expand_as(x), state)
        return y.flatten(0, 1), y[:, -1]

    def complex_recurrence_many(self, x: Tensor, factor: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y = scanned_complex(x.unflatten(0, (len(state), -1)), factor, state)
        return y.flatten(0, 1), y[:, -1]


def _seen(T: int, total: int, device: torch.device) -> Tensor:
    """Causal mask (T, total) of the last T tokens."""
    return torch.ones(T, total, dtype=torch.bool, device=device).tril(total - T)


def _products_are_faster(v: Tensor) -> bool:
    """Whether matrix products compute attention to values v (B, G, n, V) faster than torch's own kernel.

    On CPUs with bfloat16 instructions they took 0.33 of its time, forward and backward, for 256 tokens, 0.93 for 1,024
    and 1.4 for 2,048. They store the attention weights, n values per query and head.
    """
    cast = torch.is_autocast_enabled(v.device.type)
    dtype = torch.get_autocast_dtype(v.device.type) if cast else v.dtype
    return dtype == torch.bfloat16 and v.device.type == "cpu" and v.shape[2] <= PRODUCTS

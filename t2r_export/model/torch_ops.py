"""The operators of t2r_export.model.ops, computed by torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.model.ops import Erase, Ops
from t2r_export.model.recurrences import chunked_linear_attention, scanned, scanned_complex

PRODUCTS = 512  # maximum keys for bfloat16 attention by matrix products on CPUs
_DTYPES = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64}


def _use_one_thread() -> None:
    """Set up torch in a forked process, which has none of the threads of its parent's pools.

    OpenMP waits for them without end, and torch makes its pool anew on first use, where two threads collide.
    """
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_use_one_thread)


class TorchOps(Ops[Tensor]):
    """Torch operators for a step or for T tokens.

    Args:
        tokens: T; None: a step.
        like: a weight, for the device and dtype of constants.
    """

    def __init__(self, tokens: int | None = None, like: Tensor | None = None) -> None:
        self.tokens = tokens
        self.device = None if like is None else like.device
        self.wide = torch.float64 if like is not None and like.dtype == torch.float64 else torch.float32

    @property
    def many(self) -> bool:
        return self.tokens is not None

    def parameter(self, tensor: Tensor) -> Tensor:
        return tensor

    def constant(self, array: Any, dtype: str, name: str) -> Tensor:
        return torch.as_tensor(array, dtype=self.wide if dtype == "float32" else _DTYPES[dtype], device=self.device)

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        rows = F.embedding(ids.to(table.device), table.flatten(1))
        return rows.view(*ids.shape, *table.shape[1:])

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # values computed from states can be wider than weights
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            x = x.to(weight.dtype)
        return F.linear(x, weight, bias)

    def linears(self, x: Tensor, groups: Sequence[Sequence[nn.Linear]]) -> list[Tensor]:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # once, not for each product
        return [self.concat([self.linear(x, p.weight, p.bias) for p in group]) for group in groups]

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def add(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        return torch.as_tensor(a + b)

    def sub(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        return torch.as_tensor(a - b)

    def mul(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        return torch.as_tensor(a * b)

    def div(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        return torch.as_tensor(a / b)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype != b.dtype:  # half-precision weights and float32 states
            wide = torch.promote_types(a.dtype, b.dtype)
            a, b = a.to(wide), b.to(wide)
        return torch.matmul(a, b)

    def maximum(self, x: Tensor, low: float) -> Tensor:
        return torch.clamp(x, min=low)

    def minimum(self, x: Tensor, high: float) -> Tensor:
        return torch.clamp(x, max=high)

    def remainder(self, x: Tensor, divisor: int) -> Tensor:
        return x % divisor

    def relu(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        return torch.log(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def log_sigmoid(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)

    def elu(self, x: Tensor) -> Tensor:
        return F.elu(x)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        return F.gelu(x, approximate="tanh" if tanh else "none")

    def softplus(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def expm1(self, x: Tensor) -> Tensor:
        return torch.expm1(x)

    def sqrt(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)

    def sin(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def cos(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def softmax(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=-1)

    def mean(self, x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True)

    def reduce_max(self, x: Tensor) -> Tensor:
        return x.amax(-1, keepdim=True)

    def top_k(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        found = torch.topk(x, count)
        return found.values, found.indices

    def gather(self, x: Tensor, indices: Tensor) -> Tensor:
        return torch.gather(x, -1, indices.long())

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.to(_DTYPES[dtype])

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        return x.unsqueeze(axis)

    def squeeze(self, x: Tensor, axis: int) -> Tensor:
        return x.squeeze(axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        return [x] if len(sizes) == 1 else list(torch.split(x, list(sizes), dim=axis))

    def concat(self, parts: Sequence[Tensor], axis: int = -1) -> Tensor:
        parts = [part for part in parts if part.shape[axis]] or parts[:1]  # an empty cache costs no copy
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=axis)

    def repeat_heads(self, x: Tensor, heads: int) -> Tensor:
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)

    def slice_from(self, x: Tensor, start: int) -> Tensor:
        return x[:, :, start:]

    def slice_last(self, x: Tensor, count: int) -> Tensor:
        return x[:, :, x.shape[2] - count :]

    def drop_last(self, x: Tensor, count: int) -> Tensor:
        return x[:, :, : x.shape[2] - count]

    def pad_front(self, x: Tensor, count: int) -> Tensor:
        return F.pad(x, (0, 0, count, 0))

    def digits(self, x: Tensor, base: int, count: int) -> Tensor:
        place = torch.arange(count, device=x.device)
        digit = x.long().unsqueeze(-1) // base**place % base
        return (digit + place * base).int()

    # -- depends on the number of tokens

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
        if z is None:
            o, S = chunked_linear_attention(q, k, v, S, log_gate, beta, erase)
            return o, None, S, None
        # z is S for v = 1: an additional column of v and S computes the denominator
        both, after = chunked_linear_attention(
            q, k, F.pad(v, (0, 1), value=1.0), torch.cat([S, z.unsqueeze(-1)], dim=-1), log_gate, beta
        )
        return both[..., :-1], both[..., -1:], after[..., :-1], after[..., -1]

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

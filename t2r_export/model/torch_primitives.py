"""The operators of t2r_export.model.primitives, computed by torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.model.primitives import Primitives

_DTYPES = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64}

_ROUNDED: ContextVar[Iterator[Tensor] | None] = ContextVar("_ROUNDED", default=None)
HALF = 0.5 + 0.01  # of a level; the arguments of two sides differ by rounding alone


@contextlib.contextmanager
def rounded_as(given: Iterable[Tensor]) -> Iterator[None]:
    """Context in which `to_int8` rounds as another side did, wherever that side's integer is next to its own argument.

    A difference in the last digit of an argument may round it the other way. With the same integers, everything after
    them can be compared as closely as without rounding.

    Args:
        given: for each call in turn, the integers of the last tokens, (…, n, d).
    """
    token = _ROUNDED.set(iter(given))
    try:
        yield
    finally:
        _ROUNDED.reset(token)


class TorchPrimitives(Primitives[Tensor]):
    """Args: like: a weight, for the device and dtype of constants."""

    def __init__(self, like: Tensor | None = None) -> None:
        self.device = None if like is None else like.device
        self.wide = torch.float64 if like is not None and like.dtype == torch.float64 else torch.float32

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

    def to_int8(self, x: Tensor) -> Tensor:
        # in bfloat16 the largest may exceed 127
        rounded, given = x.detach().round().clamp(-127, 127), _ROUNDED.get()
        if given is not None:
            theirs = next(given)[..., -x.shape[-2] :, :].to(x.dtype)
            last = slice(x.shape[-2] - theirs.shape[-2], None)
            near = (theirs - x[..., last, :]).abs() <= HALF
            rounded[..., last, :] = theirs.where(near, rounded[..., last, :])
        return rounded.to(torch.int8)

    def straight_through(self, y: Tensor, x: Tensor) -> Tensor:
        return y.detach() + (x - x.detach()) if x.requires_grad else y

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

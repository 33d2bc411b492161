"""Tokens and their positions, heads, norms and short convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-6  # added to mean squares and feature sums
Options = Mapping[str, Any]
States = dict[str, Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_10": lambda x: F.gelu(x).clamp(-10.0, 10.0),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": F.mish,
}


def wide(x: Tensor) -> torch.dtype:
    """States are at least float32: sums in bfloat16 stop growing after 256 equal terms."""
    return torch.promote_types(x.dtype, torch.float32)


class Tokens:
    """T tokens of each text, and tensors that depend on their positions only.

    Args:
        start: (B,), number of tokens read before, without padding.
        real: (B, T), false for padding; None: no padding.
    """

    def __init__(self, ids: Tensor, start: Tensor, real: Tensor | None) -> None:
        self.start, self.real = start, real
        counted = torch.ones_like(ids) if real is None else real.long()
        self.after = start + counted.sum(1)
        position = start[:, None] + counted.cumsum(1) - 1
        self.position = position if real is None else position.masked_fill(~real, -1)  # (B, T)
        self._rotations: dict[Any, tuple[Tensor, Tensor]] = {}

    def masked(self, x: Tensor) -> Tensor:
        """x (B, heads, T, ·) with zeros at padding."""
        return x if self.real is None else x * self.real[:, None, :, None]

    def rotation(self, rope: Rope, ahead: int = 0) -> tuple[Tensor, Tensor]:
        """cos and sin at the positions, shifted by `ahead`; shared by all layers."""
        key = (id(rope), ahead)
        if key not in self._rotations:
            self._rotations[key] = rope.at(self.position + ahead)
        return self._rotations[key]


class Rope:
    """Rotations by position · frequency."""

    def __init__(self, frequencies: list[float], magnitude: float) -> None:
        self.frequencies, self.magnitude = frequencies, magnitude

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, N) -> cos and sin (B, 1, N, F). Angles are float64, so that large ones are exact."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=position.device)
        angles = position[:, None, :, None].double() * frequencies
        return (angles.cos() * self.magnitude).float(), (angles.sin() * self.magnitude).float()


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x (B, heads, T, d): the first F elements pair with the next F."""
    cos, sin = rotation
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads · d) -> (B, heads, T, d)."""
    apart: Tensor = x.unflatten(-1, (heads, -1))
    return apart.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, d) -> (B, T, heads · d)."""
    return x.transpose(1, 2).flatten(2)


def repeated(x: Tensor, heads: int) -> Tensor:
    """Repeat heads (B, G, …) for the query heads that share them."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


class Norm(nn.Module):
    """Layer norm, RMS norm, or the identity without options."""

    def __init__(self, options: Options | None, size: int) -> None:
        super().__init__()
        self.eps = 0.0 if options is None else options["eps"]
        self.weight = None if options is None else nn.Parameter(torch.ones(size))
        layer = options is not None and options["kind"] == "layer"
        self.bias = nn.Parameter(torch.zeros(size)) if layer else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution whose state is its last inputs."""

    def __init__(self, taps: int, channels: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def shape(self) -> tuple[int, ...]:
        return 1, len(self.weight) - 1, self.weight.shape[1]

    def forward(self, x: Tensor, past: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """x (B, T, channels) and the state (B, 1, taps - 1, channels) -> the same shapes."""
        joined = torch.cat([past, tokens.masked(x[:, None].to(past.dtype))], 2)
        T = x.shape[1]
        y = torch.stack([joined[:, 0, j : j + T] * w for j, w in enumerate(self.weight)]).sum(0)
        return (y if self.bias is None else y + self.bias).to(x.dtype), joined[:, :, T:]


Ropes = tuple[Rope | None, Rope | None]  # of q and k, and of features

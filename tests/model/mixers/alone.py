"""A single layer in float64, with random weights, texts and states, as a sequence and step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from small import GPT2, B
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.parts import InsideConfig, PartConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.model.mixers.base import Heads
from t2r_export.model.ops import State
from t2r_export.model.positions.rotary import Rotary
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer


class Alone:
    """A layer of a model, called with texts (B, T, D) and tokens (B, D) instead of rows.

    Missing attributes are looked up in the layer (`q`, `fold`), then in an attention layer's inner mixer (`maps`).
    """

    wrap: int | None = None  # absolute positions are modulo this

    def __init__(self, model: UniformConfig, layer: Any) -> None:
        self.model, self.layer = model, layer
        self.config = layer.config.inside if isinstance(layer.config, InsideConfig) else layer.config
        self.ropes = [Rotary(rotary, size) for rotary, size in layer.site.rotations]

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.layer, name) or not hasattr(self.layer, "inner"):
            return getattr(self.layer, name)
        return getattr(self.layer.inner, name)

    def context(self, tokens: int | None, batch: int, start: list[int] | None = None) -> Step[Tensor]:
        """The layer's context: `start` is the number of tokens that each row has read before, 0 if not given."""
        seen = torch.tensor(start or [0] * batch, dtype=torch.int32)
        return Step(TorchOps(tokens, torch.zeros((), dtype=torch.float64)), seen, self.ropes, self.wrap)

    def __call__(self, x: Tensor, state: State[Tensor], start: list[int] | None = None) -> tuple[Tensor, State[Tensor]]:
        """The whole text x (B, T, D)."""
        y, after = self.layer(x.flatten(0, 1), state, self.context(x.shape[1], len(x), start))
        return y.unflatten(0, x.shape[:2]), after

    def step(self, x: Tensor, state: State[Tensor], start: list[int] | None = None) -> tuple[Tensor, State[Tensor]]:
        """One token x (B, D)."""
        found: tuple[Tensor, State[Tensor]] = self.layer(x, state, self.context(None, len(x), start))
        return found

    def heads(self, x: Tensor, start: list[int] | None = None) -> Heads[Tensor]:
        """What an attention layer passes to its inner mixer, from x (B, T, D)."""
        found: Heads[Tensor] = self.layer.project(x.flatten(0, 1), self.context(x.shape[1], len(x), start))
        return found

    def output(self, o: Tensor) -> Tensor:
        """The output of an attention layer: o (B, T, H, V) -> (B, T, D)."""
        y: Tensor = self.layer.o(o.flatten(2))
        return y

    def rotated(self, x: Tensor, start: list[int] | None = None) -> Tensor:
        """Rotate x (B, T, heads, d) if positions are rotary: its pairs (i, i + d/2) as complex numbers."""
        if not self.ropes:
            return x
        cos, sin = self.context(x.shape[1], len(x), start).rotation(0)
        a, b = x.chunk(2, dim=-1)
        pairs = torch.complex(a, b) * torch.complex(cos.double(), sin.double()).transpose(1, 2)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def fold(self) -> Alone:
        return Alone(self.model, self.layer.fold())


def layer(model: UniformConfig, config: MixerConfig | PartConfig) -> Any:
    """The mixing part of a layer of `model`, with fresh weights."""
    return Transformer(dataclasses.replace(model, layers=(config,)).build()).blocks[0].parts[0]


def random_mixer(model: UniformConfig, config: MixerConfig | PartConfig, scale: float = 0.5, seed: int = 0) -> Alone:
    """Random weights, none of them zero; buffers that a mixer drew itself stay."""
    made = layer(model, config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for weight in made.parameters():
        weight.data = scale * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return Alone(model, made)


def text(length: int, batch: int = B, seed: int = 1) -> Tensor:
    """Random input of a layer (B, T, D)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, GPT2.width, generator=generator, dtype=torch.float64)


def buffers(made: Alone, batch: int) -> State[Tensor]:
    """States full of random numbers."""
    generator = torch.Generator().manual_seed(5)
    return {s.name: torch.rand(s.dims(batch), generator=generator).double() for s in made.state_spec()}


def empty(made: Alone, batch: int = B) -> State[Tensor]:
    """The state before a text."""
    return {s.name: torch.zeros(s.dims(batch), dtype=torch.float64) for s in made.state_spec()}


def by_steps(
    made: Alone, x: Tensor, state: State[Tensor], start: list[int] | None = None
) -> tuple[Tensor, State[Tensor]]:
    """`made(x, state, start)`, one step per token."""
    out = []
    for t in range(x.shape[1]):
        y, state = made.step(x[:, t], state, [n + t for n in start or [0] * len(x)])
        out.append(y)
    return torch.stack(out, 1), state


def states(made: Alone) -> State[Tensor]:
    """Random states of either sign."""
    generator = torch.Generator().manual_seed(2)
    return {s.name: torch.randn(s.dims(B), generator=generator, dtype=torch.float64) for s in made.state_spec()}


Definition = Callable[[Alone, Tensor, State[Tensor]], tuple[np.ndarray, dict[str, np.ndarray]]]


@torch.no_grad()
def assert_is_definition(
    made: Alone, x: Tensor, state: State[Tensor], definition: Definition, tolerance: float = 1e-10
) -> None:
    """Assert that a sequence and its steps equal the definition: outputs and every state."""
    found = [made(x, state), by_steps(made, x, state)]
    expected, end = definition(made, x, state)
    for y, after in found:
        np.testing.assert_allclose(y.numpy(), expected, rtol=tolerance, atol=tolerance)
        assert after.keys() == end.keys()
        for key, value in after.items():
            np.testing.assert_allclose(value.numpy(), end[key], rtol=tolerance, atol=tolerance)


@torch.no_grad()
def assert_is_steps(made: Alone, length: int, tolerance: float = 1e-10) -> None:
    """Assert that a sequence equals its steps: outputs and every state."""
    x, state = text(length), states(made)
    (y, after), (stepped, end) = made(x, state), by_steps(made, x, state)
    torch.testing.assert_close(y, stepped, rtol=tolerance, atol=tolerance)
    assert after.keys() == end.keys()
    for key, value in after.items():
        torch.testing.assert_close(value, end[key], rtol=tolerance, atol=tolerance)

"""One mixer by itself, in float64: random weights, texts and states for it, and its step instead of its whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from small import GPT2, B
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers import Mixer, State, build_mixer
from t2r_export.model.positions import Rotary


def random_mixer(model: ModelConfig, config: MixerConfig, scale: float = 0.5, seed: int = 0) -> Any:
    """All weights random, none of them zero; what a mixer drew itself stays."""
    made = build_mixer(model, config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for weight in made.parameters():
        weight.data = scale * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return made


def text(length: int, batch: int = B, seed: int = 1) -> Tensor:
    """What a mixer gets (B, T, D)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, GPT2.width, generator=generator, dtype=torch.float64)


def buffers(made: Mixer, counts: list[int]) -> State:
    """Buffers full of random numbers, filled or not; each row has seen its own number of tokens."""
    generator = torch.Generator().manual_seed(5)
    values = {s.name: torch.rand(s.dims(len(counts)), generator=generator).double() for s in made.state_spec()}
    return values | {"count": torch.tensor(counts, dtype=torch.int32)}


def empty(made: Mixer, batch: int = B) -> State:
    """The state before a text."""
    types = {"float32": torch.float64, "int32": torch.int32}
    return {s.name: torch.zeros(s.dims(batch), dtype=types[s.dtype]) for s in made.state_spec()}


def by_steps(made: Mixer, x: Tensor, state: State, rotary: Rotary | None = None) -> tuple[Tensor, State]:
    """`made(x, state, rotary)`, one step a token."""
    out = []
    for t in range(x.shape[1]):
        here = None if rotary is None else (rotary[0][:, t], rotary[1][:, t])
        y, state = made.step(x[:, t], state, here)
        out.append(y)
    return torch.stack(out, 1), state

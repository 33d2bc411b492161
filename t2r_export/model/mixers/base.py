"""What a token mixer offers: the interface written once.

A mixer carries information from earlier tokens to the present one, and keeps what it must remember in named states of
known shape. Everything else (export, verification, the runtimes) works from the state specs alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary
from t2r_runtime.signature import StateSpec

State = dict[str, Any]  # a mixer's states by their local name ("S", "z"), batch first


class Mixer(nn.Module):
    """Base of the token mixers. `model` gives the sizes, `config` what is this mixer's own."""

    def __init__(self, model: ModelConfig, config: MixerConfig) -> None:
        super().__init__()
        self.config = config
        self.width = model.width
        self.heads, self.kv_heads, self.head_size = model.heads, model.kv_heads, model.head_size

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        """Parallel form. x (B, T, D), the state before, cos and sin (B, T, 1, d/2) -> y (B, T, D), the state after."""
        raise NotImplementedError

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        """Recurrent form. x (B, D), the state before it, cos and sin (B, 1, d/2) -> y (B, D), the state after."""
        raise NotImplementedError

    def state_spec(self) -> list[StateSpec]:
        """Name, dtype, shape and initial value of every state."""
        raise NotImplementedError

    def horizon(self) -> int:
        """Tokens after which all of every state can have been written, and whatever is in it can have been read."""
        return 1

    def statistics(self, x: Tensor, state: State, rotary: Rotary | None) -> dict[str, Tensor]:
        """How well the features of a batch are, for the training log: scalars by name, none by default.

        Arguments as `forward`'s. Names that begin with `smallest` or `largest` are extremes, the others means.
        """
        return {}

    def parallel_obstacle(self) -> str | None:
        """Why `step` cannot also take the rows of T tokens of each sequence, x (B·T, D) and cos and sin (B·T, 1, d/2),
        or None if it can: its states are then touched by operators alone that know sequences."""
        return f"{self.config.kind} has no form for many tokens in a graph"

    def penalty(self) -> Tensor:
        """What this mixer's own parameters add to the loss of a stage that trains them: a scalar, 0 by default."""
        return torch.zeros(())

    def fold_obstacle(self) -> str | None:
        """Why this mixer cannot be folded, or None if it can."""
        raise NotImplementedError

    def fold(self) -> Mixer:
        """The same function with its feature map inside its projections. Only where not yet done and no obstacle is."""
        raise NotImplementedError

    def fold_state(self, state: State) -> State:
        """A state of this mixer as its folded form keeps it: the same by default."""
        return state

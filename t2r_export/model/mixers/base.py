"""What mixes inside attention: the interface written once.

Attention (t2r_export.model.parts.attention) projects, rotates and splits into heads. What happens between q, k, v and
the output is an `AttentionMixer`, which knows heads alone and keeps what it must remember in named states.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.tagged import Kind
from t2r_export.model.ops import State, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import StateSpec


class Stateful(nn.Module):
    """What has states, and says which."""

    config: Kind
    needs_position = False  # whether it asks the step for the number of tokens seen

    def state_spec(self) -> list[StateSpec]:
        """Name, dtype, shape and initial value of every state."""
        raise NotImplementedError

    @functools.cached_property
    def state_names(self) -> tuple[str, ...]:
        """Names of its states; every step asks for them."""
        return tuple(spec.name for spec in self.state_spec())

    def memory_length(self) -> int:
        """Tokens after which all of every state can have been written, and whatever is in it can have been read."""
        return 1

    def penalty(self) -> Tensor:
        """What this mixer's own parameters add to the loss of a stage that trains them: a scalar, 0 by default."""
        return torch.zeros(())

    def why_not_foldable(self) -> str | None:
        """Why this mixer cannot be folded, or None if it can."""
        return f"{self.config.kind} layers have no feature map to fold"

    def fold_state(self, state: State[Any]) -> State[Any]:
        """A state of this mixer as its folded form keeps it: the same by default."""
        return state


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of an attention layer's heads, and what its inside needs beside them."""

    width: int  # D
    heads: int  # H
    kv_heads: int  # G
    size: int  # d of q and k, V of v
    eps: float  # of norms
    rope: int | None  # the number of the model's rotation, where q and k rotate
    scale: float  # of softmax scores
    softcap: float | None = None  # of softmax scores
    feature_rope: int | None = None  # the number of the rotation of φ(q) and φ(k), where features rotate
    lends: bool = False  # whether the layer above takes this one's attention weights
    bias: Positions | None = None  # positions that are a bias of softmax scores


@dataclass(frozen=True)
class Heads(Generic[T]):
    """What an attention layer gives its inside of T tokens, T = 1 in a step."""

    q: T  # (B, H, T, d), rotated where the mixer says so; of a folded layer the arguments of φ
    k: T  # (B, G, T, d), likewise
    v: T  # (B, G, T, V)
    plain_q: T  # q before the rotation, for what has no place in the text
    x: T  # rows (N, D), the layer's input
    extra: T | None = None  # rows (N, ·) of what a folded layer's inside had projected beside q, k and v


@dataclass(frozen=True)
class Packing:
    """What of an inside's own maps a fold moves into the projections in front of it (Kasai et al. 2021, eq. 8)."""

    q: tuple[Tensor, Tensor | None] | None  # W (H, d, A) and b (H, A); None: nothing, as of k
    k: tuple[Tensor, Tensor | None] | None
    query_scale: float
    extra: tuple[Tensor, Tensor] | None  # more rows, weight (n, D) and bias (n)


class AttentionMixer(Stateful):
    """What happens between q, k, v and the output of an attention layer."""

    absolute = False  # whether a place in the text, not a distance, is what it sees of the rotation of q and k
    rotates = True  # whether the layer rotates q and k before; false: it does so itself, or not at all

    def __init__(self, sizes: HeadSizes, config: MixerConfig) -> None:
        super().__init__()
        self.sizes, self.config = sizes, config

    config: MixerConfig

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """T tokens, T = 1 in a step: heads and the state before them -> o (B, H, T, V), the state after the last."""
        raise NotImplementedError

    def packed_sizes(self) -> tuple[int, int]:
        """Where the config says packed: arguments of φ per head, and rows of `extra`."""
        raise NotImplementedError

    def packing(self) -> Packing | None:
        """What a fold moves into the projections; None: the projections stay as they are."""
        return None

    def statistics(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """As `Part.statistics`."""
        return {}

    def fold(self, like: Tensor) -> AttentionMixer:
        """The folded form of this inside, in the precision and on the device of `like`."""
        raise NotImplementedError

"""The interface of attention mixers.

Attention (t2r_export.model.parts.attention) projects, rotates and splits heads. An `AttentionMixer` computes the output
from q, k, v and its named states.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.tagged import Kind
from t2r_export.model.ops import State, T
from t2r_export.model.positions.scores import ScorePositions
from t2r_export.model.step import Step
from t2r_export.model.units import Units
from t2r_runtime.contract.state_spec import StateSpec


class Stateful(nn.Module):
    """Base of modules with states."""

    config: Kind
    needs_position = False  # whether it uses the position

    def state_spec(self) -> list[StateSpec]:
        """The states: names, dtypes, shapes and initial values."""
        return []

    @functools.cached_property
    def state_names(self) -> tuple[str, ...]:
        """Names of the states."""
        return tuple(spec.name for spec in self.state_spec())

    def memory_length(self) -> int:
        """Number of tokens after which every state element can have been written and read."""
        return 1

    def penalty(self) -> Tensor:
        """A scalar regularization loss of the parameters."""
        return torch.zeros(())

    def why_not_foldable(self) -> str | None:
        """The obstacle to folding, or None."""
        return f"{self.config.kind} layers have no feature map to fold"

    def fold_state(self, state: State[Any]) -> State[Any]:
        """Convert states to those of the folded form."""
        return state


@dataclass(frozen=True)
class HeadSizes:
    """Head sizes and further properties of an attention layer."""

    width: int  # D
    heads: int  # H
    kv_heads: int  # G
    size: int  # d of q and k, V of v
    eps: float  # of norms
    rope: int | None  # index of the rotation of q and k
    scale: float  # of softmax scores
    softcap: float | None = None  # of softmax scores
    feature_rope: int | None = None  # index of the rotation of φ(q) and φ(k)
    lends: bool = False  # whether the layer above borrows the attention weights
    positions: ScorePositions | None = None  # in softmax scores
    sink: bool = False  # whether each head has a trained logit in the softmax's denominator
    normed_after: bool = False  # whether q and k are normalized after the rotation, so that the layer must rotate


@dataclass(frozen=True)
class Heads(Generic[T]):
    """Inputs of a mixer for T tokens, T = 1 in a step."""

    q: T  # (B, H, T, d), rotated if the mixer `rotates`; in a folded layer, arguments of φ
    k: T  # (B, G, T, d), likewise
    v: T  # (B, G, T, V)
    plain_q: T  # q before the rotation
    x: T  # rows (N, D), the layer's input
    extra: T | None = None  # rows (N, ·), further outputs of a packed projection


@dataclass(frozen=True)
class Attended:
    """A teacher's attention on windows of a text, for `AttentionMixer.start`."""

    heads: Sequence[Heads[Tensor]]  # the mixer's inputs for the teacher's hidden states, a window of T tokens each
    state: State[Tensor]  # before each window
    step: Step[Tensor]
    distance: Tensor | None  # mean attention distance per kv head (G,); None: undefined
    far: Tensor | None  # share of attention that is outside the mixer's `near_tokens`, per head (H,); None: undefined
    generator: torch.Generator

    @property
    def q(self) -> Tensor:
        """Queries (H, N, d) of all windows."""
        return torch.cat([heads.q[0] for heads in self.heads], 1)

    @property
    def k(self) -> Tensor:
        """Keys (G, N, d) of all windows."""
        return torch.cat([heads.k[0] for heads in self.heads], 1)


@dataclass(frozen=True)
class Packing:
    """Affine maps that a fold moves into the projections (Kasai et al. 2021, eq. 8)."""

    q: tuple[Tensor, Tensor | None] | None  # W (H, d, A) and b (H, A); None: no map
    k: tuple[Tensor, Tensor | None] | None
    query_scale: float
    extra: tuple[Tensor, Tensor] | None  # further rows: weight (n, D) and bias (n)


class AttentionMixer(Stateful):
    """Base of the operations between q, k, v and the output of attention."""

    config: MixerConfig
    absolute = False  # whether it depends on absolute rotations of q and k, not on distances
    rotates = True  # whether the layer rotates q and k
    scales = True  # whether it scales q by its position

    def __init__(self, sizes: HeadSizes, config: MixerConfig) -> None:
        super().__init__()
        self.sizes, self.config, self.positions = sizes, config, sizes.positions

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Heads of T tokens (T = 1 in a step) and the states before -> o (B, H, T, V) and the states after."""
        raise NotImplementedError

    def packed_sizes(self) -> tuple[int, int]:
        """For packed configs: size per head of φ's arguments, and number of `extra` rows."""
        raise NotImplementedError

    def packing(self) -> Packing | None:
        """The maps that a fold moves into the projections; None: none."""
        return None

    def channels(self) -> Units | str | None:
        """Prunable channels of a linear state, or why none is prunable; None: no such state."""
        return None

    def joined(self) -> dict[str, list[int]]:
        """By weight name: sizes of the pieces concatenated on an axis, over all heads."""
        return {}

    def why_heads_count(self) -> str | None:
        """Why a head's index matters, so that heads are not prunable; None: it does not."""
        return None

    def near_tokens(self) -> tuple[int, int] | None:
        """Numbers of last and of first tokens with softmax attention, beside linear attention to all others; None: the
        mixer is not of this form."""
        return None

    def is_new(self) -> bool:
        """Whether `start` would initialize weights."""
        return False

    def start(self, seen: Attended) -> None:
        """Initialize untrained feature maps, gates and merges from a teacher's attention; trained ones stay."""

    def statistics(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """As `Part.statistics`."""
        return {}

    def fold(self, like: Tensor) -> AttentionMixer:
        """The folded mixer, with the dtype and device of `like`."""
        raise NotImplementedError

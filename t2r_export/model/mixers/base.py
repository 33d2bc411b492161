"""What a token mixer offers: the interfaces written once.

A mixer carries information from earlier tokens to the present one, and keeps what it must remember in named states of
known shape. Everything else (export, verification, the runtimes) works from the state specs alone.

There are two kinds. A `Mixer` takes rows of the model's width: recurrent networks, and `Attention`
(t2r_export.model.attention), which projects, rotates and splits into heads. What an attention layer does between q, k,
v and its output is an `AttentionMixer`, which knows heads alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_runtime.signature import StateSpec


class Stateful(nn.Module):
    """What both kinds say of themselves."""

    config: MixerConfig
    needs_position = False  # whether it asks the step for the number of tokens seen

    def state_spec(self) -> list[StateSpec]:
        """Name, dtype, shape and initial value of every state."""
        raise NotImplementedError

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


def own_states(mixer: Stateful, states: State[Any]) -> State[Any]:
    """Of a block's states those of one mixer."""
    return {spec.name: states[spec.name] for spec in mixer.state_spec()}


class Mixer(Stateful):
    """A token mixer of rows."""

    def __init__(self, width: int, config: MixerConfig) -> None:
        super().__init__()
        self.width, self.config = width, config

    def step(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """One token of each sequence: x (B, D), the state before it -> y (B, D), the state after."""
        raise NotImplementedError

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """T tokens of each sequence: rows x (B·T, D), the state before -> y (B·T, D), the state after the last."""
        raise NotImplementedError

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """`sequence` or `step`, as the operators are."""
        return self.sequence(x, state, step) if step.ops.many else self.step(x, state, step)

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """How well the features of a batch are, for the training log: scalars by name, none by default.

        Arguments as `sequence`'s. Names that begin with `smallest` or `largest` are extremes, the others means.
        """
        return {}

    def fold(self) -> Mixer:
        """The same function with its feature map inside its projections. Only where not yet done and it can be."""
        raise NotImplementedError


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

    def step(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """One token: heads and the state before -> o (B, H, 1, V), the state after."""
        raise NotImplementedError

    def sequence(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """T tokens: heads and the state before -> o (B, H, T, V), the state after the last."""
        raise NotImplementedError

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """`sequence` or `step`, as the operators are."""
        return self.sequence(heads, state, step) if step.ops.many else self.step(heads, state, step)

    def packed_sizes(self) -> tuple[int, int]:
        """Where the config says packed: arguments of φ per head, and rows of `extra`."""
        raise NotImplementedError

    def packing(self) -> Packing | None:
        """What a fold moves into the projections; None: the projections stay as they are."""
        return None

    def statistics(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """As `Mixer.statistics`."""
        return {}

    def fold(self, like: Tensor) -> AttentionMixer:
        """The folded form of this inside, in the precision and on the device of `like`."""
        raise NotImplementedError

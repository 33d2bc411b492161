"""What a part of a layer offers: the interface written once.

A part maps rows of the model's width to rows, and keeps what it must remember in named states of known shape.
Everything else (blocks, export, verification, the runtimes) works from that and from the config's declarations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from t2r_export.config.parts import PARTS, PartConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.mixers.base import Stateful
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step


@dataclass(frozen=True)
class Site:
    """What a part is told of the model that it stands in."""

    width: int  # D
    rotations: Sequence[tuple[RotaryConfig, int]] = ()  # the model's, by number
    lends: bool = False  # whether the layer above takes this part's attention weights

    def rope(self, rotation: tuple[RotaryConfig, int] | None) -> int | None:
        """The number of a rotation."""
        return None if rotation is None else list(self.rotations).index(rotation)


class Part(Stateful):
    """A part of a layer, with fresh weights."""

    config: PartConfig
    needs_lengths = False  # of a part that reads a source: whether a step asks for the lengths of the sources
    starts = False  # whether its states start with what it reads of a source

    def __init__(self, site: Site, config: PartConfig) -> None:
        super().__init__()
        self.site, self.width, self.config = site, site.width, config

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """T tokens of each sequence, T = 1 in a step: rows x (B·T, D), the state before them -> y (B·T, D), the state
        after the last."""
        raise NotImplementedError

    def read(self, x: T, source: Step[T]) -> State[T]:
        """Of a part that reads a source: the encoder's rows x (B·M, D), and what is known of the source -> states."""
        raise NotImplementedError

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """How well the features of a batch are, for the training log: scalars by name, none by default.

        Arguments as `forward`'s. Names that begin with `smallest` or `largest` are extremes, the others means.
        """
        return {}

    def fold(self) -> Part:
        """The same function with its feature map inside its projections. Only where not yet done and it can be."""
        raise NotImplementedError


def build_part(site: Site, config: PartConfig) -> Part:
    """The part that `config` describes, with fresh weights."""
    part: Part = resolve(PARTS[config.kind].model)(site, config)
    return part

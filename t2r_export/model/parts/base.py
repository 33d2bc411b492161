"""The interface of parts, which map rows of the model's width to rows and have named states.

Blocks, export, verification and runtimes depend only on this interface and on the declarations of `PartConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from t2r_export.config.parts import PARTS, PartConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.mixers.base import Stateful
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_export.model.units import Units


@dataclass(frozen=True)
class Site:
    """Properties of the model that a part needs."""

    width: int  # D
    rotations: Sequence[tuple[RotaryConfig, int]] = ()  # of the model
    lends: bool = False  # whether the layer above borrows this part's attention weights

    def rope(self, rotation: tuple[RotaryConfig, int] | None) -> int | None:
        """Index of a rotation in `rotations`."""
        return None if rotation is None else list(self.rotations).index(rotation)


class Part(Stateful):
    """Base of the parts of a layer."""

    config: PartConfig
    needs_lengths = False  # whether steps use the source lengths
    starts = False  # whether `read` initializes the states

    def __init__(self, site: Site, config: PartConfig) -> None:
        super().__init__()
        self.site, self.width, self.config = site, site.width, config

    @property
    def idle_parameters(self) -> int:
        """Number of parameters that a token does not use, in parts with a choice."""
        return 0

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (B·T, D) of T tokens (T = 1 in a step) and the states before -> y (B·T, D) and the states after."""
        raise NotImplementedError

    def read(self, x: T, source: Step[T]) -> State[T]:
        """Encoder rows x (B·M, D) and the source's context -> states. For parts that read a source."""
        raise NotImplementedError

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """Scalar diagnostics of a batch for the training log. Arguments as `forward`.

        Names with the prefix `smallest` or `largest` are extremes, others are means.
        """
        return {}

    def units(self, kind: str) -> Units | str | None:
        """Prunable units of a kind in t2r_export.config.pruning.KINDS; the reason if refused; None: no such units."""
        return None

    def factorable(self) -> list[str]:
        """Names of matrices that low-rank factors can replace; they share one rank."""
        return []

    def with_rank(self, rank: int) -> PartConfig:
        """The config with this rank, where M becomes M.outer times M.inner. For parts with factorable matrices."""
        raise NotImplementedError

    def fold(self) -> Part:
        """The folded part, with the feature map inside the projections. Only if `why_not_foldable` is None."""
        raise NotImplementedError


def active_parameters(model: nn.Module) -> int:
    """Number of parameters that a token uses."""
    idle = sum(part.idle_parameters for part in model.modules() if isinstance(part, Part))
    return sum(p.numel() for p in model.parameters()) - idle


def build_part(site: Site, config: PartConfig) -> Part:
    """Create the part of a config with initial weights."""
    part: Part = resolve(PARTS[config.kind].model)(site, config)
    return part

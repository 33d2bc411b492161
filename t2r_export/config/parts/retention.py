"""Gated sums: a token-dependent decay per key channel, or a fixed decay per head. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.linear import LinearPartConfig
from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class GLAConfig(LinearPartConfig):
    """Gated linear attention (Yang et al. 2024, arXiv 2312.06635)."""

    kind: ClassVar[str] = "gla"

    decay_rank: int = 16  # rank of the projection
    decay_divisor: float = 16.0  # divisor of log σ: decays start near 1


@dataclass(frozen=True, kw_only=True)
class RetentionConfig(LinearPartConfig):
    """Multi-scale retention (Sun et al. 2023, arXiv 2307.08621) with rotary positions and an RMS norm per head."""

    kind: ClassVar[str] = "retention"

    positions: PositionConfig | None = None  # rotary

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions is not None:
            rotary = isinstance(self.positions, RotaryConfig)
            need(rotary, "rotary positions in retention, or none", repr(self.positions), "correct the positions")
            self.positions.check(self.key_size)

    def rotations(self) -> list[tuple[RotaryConfig, int]]:
        rotary = self.positions
        return [(rotary, rotary.rotated(self.key_size))] if isinstance(rotary, RotaryConfig) else []

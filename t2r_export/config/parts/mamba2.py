"""Mamba-2 layers. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import MAX_SIZE, need


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(PartConfig):
    """A selective state space layer with scalar decay (Dao and Gu 2024, arXiv 2405.21060)."""

    kind: ClassVar[str] = "mamba2"

    heads: int  # H
    head_size: int  # V, channels per head
    state_size: int  # K, state per channel
    groups: int = 1  # groups of heads that share B and C; divides heads
    taps: int = limited(4, bounds=(2, MAX_SIZE))  # kernel size of the convolution over x, B and C
    conv_bias: bool = True
    bias: bool = False  # of the input projection
    output_bias: bool = False
    least_step: float = limited(0.0, bounds=(0, math.inf))  # dt is clamped to this range
    largest_step: float | None = None
    norm_groups: int = limited(1, bounds=(0, MAX_SIZE))  # groups of the gated RMS norm; 0: no norm
    norm_eps: float = 1e-5
    norm_before_gate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.heads % self.groups == 0, f"groups to divide heads={self.heads}", self.groups, "correct groups")
        fits = self.norm_groups == 0 or self.inner % self.norm_groups == 0
        need(fits, f"norm_groups to divide {self.inner} channels", self.norm_groups, "correct norm_groups")
        above = self.largest_step is None or self.least_step < self.largest_step
        received = f"{self.least_step} and {self.largest_step}"
        need(above, "0 <= least_step < largest_step", received, "correct the steps")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> list[int]:
        """Channels of x, B and C, the convolution's inputs."""
        return [self.inner, *[self.groups * self.state_size] * 2]

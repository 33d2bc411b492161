"""Mamba-2 layers. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import flag, need, number, size


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(PartConfig):
    """A selective state space of scalar decay (Dao and Gu 2024, arXiv 2405.21060), as its checkpoints have it."""

    kind: ClassVar[str] = "mamba2"

    heads: int  # H
    head_size: int  # V, channels of a head
    state_size: int  # K, numbers a channel keeps
    groups: int = 1  # of heads that share B and C; divides heads
    taps: int = 4  # of the convolution over x, B and C
    conv_bias: bool = True
    bias: bool = False  # of the projection in front
    output_bias: bool = False
    least_step: float = 0.0  # dt is kept between these, in prompts and in steps
    largest_step: float | None = None
    norm_groups: int = 1  # of the RMS norm beside the gate; 0: there is no norm
    norm_eps: float = 1e-5
    norm_before_gate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("heads", "head_size", "state_size", "groups"):
            size(name, getattr(self, name))
        size("taps", self.taps, least=2)
        size("norm_groups", self.norm_groups, least=0)
        for name in ("conv_bias", "bias", "output_bias", "norm_before_gate"):
            flag(name, getattr(self, name))
        need(self.heads % self.groups == 0, f"groups to divide heads={self.heads}", self.groups, "correct groups")
        fits = self.norm_groups == 0 or self.inner % self.norm_groups == 0
        need(fits, f"norm_groups to divide {self.inner} channels", self.norm_groups, "correct norm_groups")
        number("norm_eps", self.norm_eps)
        number("least_step", self.least_step, positive=False)
        if self.largest_step is not None:
            number("largest_step", self.largest_step)
        above = self.largest_step is None or 0 <= self.least_step < self.largest_step
        received = f"{self.least_step} and {self.largest_step}"
        need(above and self.least_step >= 0, "0 <= least_step < largest_step", received, "correct the steps")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> list[int]:
        """Channels of x, B and C, which the convolution reads."""
        return [self.inner, *[self.groups * self.state_size] * 2]

    def summary(self) -> str:
        return f"{self.heads} heads of {self.head_size}, state {self.state_size}, convolution of {self.taps} taps"

    def state_summary(self) -> str:
        S = f"S ({self.heads} × {self.state_size} × {self.head_size})"
        return f"{S}, and what the convolution read of the last {self.taps - 1} tokens"

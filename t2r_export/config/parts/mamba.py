"""Mamba layers. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class MambaConfig(PartConfig):
    """A selective state space layer with a decay per channel and state (Gu and Dao 2023, arXiv 2312.00752)."""

    kind: ClassVar[str] = "mamba"

    size: int  # channels
    state_size: int  # per channel
    step_rank: int  # rank of the projection of dt
    taps: int = limited(4, bounds=(2, MAX_TAPS))  # kernel size of the convolution
    conv_bias: bool = True
    bias: bool = False  # of the input and output projections
    inner_norm_eps: float | None = None  # of the RMS norms of low-rank dt, B and C; None: no norms
    inner_norm_weights: bool = False  # whether those norms have trained scales

    def __post_init__(self) -> None:
        super().__post_init__()
        there = self.inner_norm_eps is not None or not self.inner_norm_weights
        need(there, "inner_norm_eps with inner_norm_weights", "none", "correct the config")

"""Mamba layers. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS


@dataclass(frozen=True, kw_only=True)
class MambaConfig(PartConfig):
    """A selective state space layer with a decay per channel and state (Gu and Dao 2023, arXiv 2312.00752)."""

    kind: ClassVar[str] = "mamba"

    size: int  # channels
    state_size: int  # per channel
    step_rank: int  # of the low-rank projection of dt
    taps: int = limited(4, bounds=(2, MAX_TAPS))  # of the convolution
    conv_bias: bool = True
    bias: bool = False  # of the input and output projections
    inner_norm_eps: float | None = None  # of RMS norms of dt's low rank, B and C, without weights; None: no norms

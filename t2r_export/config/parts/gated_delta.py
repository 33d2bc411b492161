"""Delta rules without decay, with a decay per head, and with a decay per key channel. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.linear import GATES, LinearPartConfig


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(LinearPartConfig):
    """DeltaNet (Yang et al. 2024, arXiv 2406.06484): the delta rule."""

    kind: ClassVar[str] = "delta_net"

    allow_neg_eigval: bool = False  # β from 0 to 2 instead of 1 (Grazzi et al. 2024, arXiv 2411.12537)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig(DeltaNetConfig):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464): the delta rule with a decay per head."""

    kind: ClassVar[str] = "gated_delta"


@dataclass(frozen=True, kw_only=True)
class KDAConfig(DeltaNetConfig):
    """Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692): the delta rule with a decay per key channel."""

    kind: ClassVar[str] = "kda"

    decay_rank: int  # rank of the low-rank projections
    gate_rank: int
    gate: str = limited("sigmoid", choices=GATES)
    gate_bias: bool = False

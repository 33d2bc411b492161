"""Gated delta nets. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig(PartConfig):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464): the delta rule with a decay per head."""

    kind: ClassVar[str] = "gated_delta"

    heads: int  # H, of values and of the state
    key_heads: int  # of queries and keys; each is shared by H / key_heads consecutive value heads
    key_size: int  # K
    value_size: int  # V
    taps: int = limited(4, bounds=(2, MAX_TAPS))  # of the convolution over q, k and v
    norm_eps: float = 1e-6  # of the RMS norm of each head's output
    allow_neg_eigval: bool = False  # β from 0 to 2, not to 1 (Grazzi et al. 2024, arXiv 2411.12537)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.heads % self.key_heads == 0
        need(fits, f"key_heads to divide heads={self.heads}", self.key_heads, "correct key_heads")

    @property
    def convolved(self) -> list[int]:
        """Channels of q, k and v, the convolution's inputs."""
        return [*[self.key_heads * self.key_size] * 2, self.heads * self.value_size]

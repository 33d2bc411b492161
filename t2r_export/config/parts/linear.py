"""The base of the parts that are linear attention with a norm per head. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS
from t2r_export.config.validation import need

GATES = ("silu", "sigmoid", "none")


@dataclass(frozen=True, kw_only=True)
class LinearPartConfig(PartConfig):
    """Linear attention between a short convolution of q, k and v and a gated RMS norm of each head's output."""

    heads: int  # H, of values and of the state
    key_heads: int  # of queries and keys; each is shared by H / key_heads consecutive value heads
    key_size: int  # K
    value_size: int  # V
    taps: int = limited(4, bounds=(0, MAX_TAPS))  # kernel size of the convolution over q, k and v; 0: none
    norm_eps: float = 1e-6  # of the RMS norm of each head's output
    gate: str = limited("silu", choices=GATES)  # gate of the normalized output

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.heads % self.key_heads == 0
        need(fits, f"key_heads to divide heads={self.heads}", self.key_heads, "correct key_heads")
        need(self.taps != 1, "taps to be 0, or at least 2", self.taps, "correct taps")

    @property
    def inner(self) -> int:
        """Channels of v and of the output."""
        return self.heads * self.value_size

    @property
    def projected(self) -> list[int]:
        """Channels of q, k and v."""
        return [*[self.key_heads * self.key_size] * 2, self.inner]

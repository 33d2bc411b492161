"""Attention heads and projections as plain data. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.options import check_values, limited
from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.validation import need

MAX_POSITION = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class PositionScale:
    """Multiplies q by 1 + factor · ln(1 + ⌊position / length⌋) (Llama 4): sharper scores beyond `length`."""

    factor: float
    length: int = limited(bounds=(1, MAX_POSITION))

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Heads and projections of self-attention or cross-attention."""

    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; divides H
    head_size: int  # d of q and k, and V of v
    qkv_bias: bool = True
    output_bias: bool = True
    qk_norm: bool = False  # RMS norm of each head of q and k before the rotation, with a scale shared by all heads
    qk_norm_wide: bool = False  # qk_norm over all heads at once, with a scale per element
    qk_norm_after: bool = False  # qk_norm after the rotation
    positions: PositionConfig | None = None  # rotation of q and k, or a bias of the scores
    gate: bool = False  # elementwise output gate: o ⊙ sigmoid(W x)
    gate_per_head: bool = False  # one gate value per head, without a bias
    scale: float | None = None  # factor of the scores; None: head_size^-0.5
    position_scale: PositionScale | None = None  # position-dependent scale of q
    sink: bool = False  # trained logit per head in the softmax denominator; ignored by linear layers
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    norm_eps: float = 1e-5  # of the norms of q, k and head outputs

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("qk_norm_wide", "qk_norm_after"):
            need(self.qk_norm or not getattr(self, name), f"qk_norm with {name}", "none", "add qk_norm")
        need(self.gate or not self.gate_per_head, "gate with gate_per_head", "none", "add gate")
        divides = self.heads % self.kv_heads == 0
        need(divides, f"kv_heads to divide heads={self.heads}", self.kv_heads, "correct kv_heads")
        if self.positions is not None:
            known = isinstance(self.positions, PositionConfig) and not self.positions.embeds
            need(known, "positions of attention, or none", repr(self.positions), "correct the positions")
            self.positions.check(self.head_size)

    @property
    def rotary(self) -> RotaryConfig | None:
        """The rotation of q and k; None for other positions."""
        return self.positions if isinstance(self.positions, RotaryConfig) else None

"""Heads of attention, as plain data, whatever mixes between the projections.

Imports without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.validation import flag, need, number, size


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Heads and projections of attention, to the text or to a source."""

    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; divides H
    head_size: int  # d of q and k, and V of v
    qkv_bias: bool = True
    output_bias: bool = True
    qk_norm: bool = False  # an RMS norm over each head of q and k, with one scale for all heads, before the rotation
    positions: PositionConfig | None = None  # by which q and k rotate, or scores have a bias
    gate: bool = False  # o ⊙ sigmoid(W x), a number for each number of the heads' outputs
    scale: float | None = None  # of scores; None: head_size^-0.5
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    norm_eps: float = 1e-5  # of the norms of q, k and of each head's output

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_size"):
            size(name, getattr(self, name))
        need(
            self.heads % self.kv_heads == 0,
            f"kv_heads to divide heads={self.heads}",
            self.kv_heads,
            "correct kv_heads",
        )
        for name in ("qkv_bias", "output_bias", "qk_norm", "gate"):
            flag(name, getattr(self, name))
        number("norm_eps", self.norm_eps)
        for name in ("scale", "softcap"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name))
        if self.positions is not None:
            known = isinstance(self.positions, PositionConfig) and not self.positions.embeds
            need(known, "positions of attention, or none", repr(self.positions), "correct the positions")
            self.positions.check(self.head_size)

    @property
    def rotary(self) -> RotaryConfig | None:
        """The rotation of q and k, if their positions are one."""
        return self.positions if isinstance(self.positions, RotaryConfig) else None

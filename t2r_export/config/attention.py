"""Heads and rotations of attention, as plain data, whatever mixes between the projections.

Imports without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.validation import MAX_TURNED, choice, flag, need, number, size


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions (Su et al. 2021): pair i of what rotates of a head, d' numbers, by position · theta^(-2i/d')."""

    theta: float = 10000.0
    scaling: str = "none"  # none | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3 only, as are the two below
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    size: int | None = None  # d', the first numbers of a head that rotate; None: all of them

    SCALINGS: ClassVar[tuple[str, ...]] = ("none", "linear", "llama3")

    def __post_init__(self) -> None:
        number("rotary theta", self.theta)
        choice("rotary scaling", self.scaling, self.SCALINGS)
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            number(f"rotary {name}", getattr(self, name))
        size("rotary original_max_positions", self.original_max_positions, 1 << 31)
        need(
            self.scaling != "llama3" or self.high_freq_factor > self.low_freq_factor,
            "rotary high_freq_factor above low_freq_factor",
            f"{self.high_freq_factor} and {self.low_freq_factor}",
            "correct the rotary scaling",
        )
        if self.size is not None:
            check_rotated("rotary size", self.size, "rotary")


def check_rotated(name: str, value: int, kind: str) -> None:
    """Half as many angles as `value`, in a table that is there before any weight is."""
    need(
        isinstance(value, int) and value > 0 and value % 2 == 0 and value <= MAX_TURNED,
        f"an even {name} of at most {MAX_TURNED} for {kind} positions",
        value,
        f"correct {name}",
    )


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Heads and projections of attention, to the text or to a source."""

    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; divides H
    head_size: int  # d of q and k, and V of v
    qkv_bias: bool = True
    output_bias: bool = True
    qk_norm: bool = False  # an RMS norm over each head of q and k, with one scale for all heads, before the rotation
    rotary: RotaryConfig | None = None  # None: q and k are not rotated
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
        for name in ("qkv_bias", "output_bias", "qk_norm"):
            flag(name, getattr(self, name))
        number("norm_eps", self.norm_eps)
        for name in ("scale", "softcap"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name))
        if self.rotary is not None:
            rotated = self.rotary_size
            check_rotated("head_size" if self.rotary.size is None else "rotary size", rotated, "rotary")
            need(rotated <= self.head_size, f"a rotary size of at most {self.head_size}", rotated, "correct it")

    @property
    def rotary_size(self) -> int:
        """Numbers of each head that rotate."""
        if self.rotary is None:
            return 0
        return self.head_size if self.rotary.size is None else self.rotary.size

"""RWKV-7: time mixing and channel mixing. Imports without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import MAX_SIZE, need


@dataclass(frozen=True, kw_only=True)
class RWKV7Config(PartConfig):
    """Time mixing of RWKV-7 (Peng et al. 2025, arXiv 2503.14456): a decay per channel, and separate erase vectors."""

    kind: ClassVar[str] = "rwkv7"

    heads: int
    head_size: int  # of keys and of values
    decay_rank: int  # rank of the decay's projections
    erase_rank: int
    gate_rank: int
    value_rank: int = limited(0, bounds=(0, MAX_SIZE))  # of the mix with the first value; 0: this value is the first
    norm_eps: float = 64e-5  # of the group norm of each head's output

    @property
    def inner(self) -> int:
        return self.heads * self.head_size

    def check_below(self, below: Sequence[PartConfig], layer: int) -> None:
        firsts = [part.inner for part in below if isinstance(part, RWKV7Config) and not part.value_rank]
        expected = f"an rwkv7 part of {self.inner} channels and value_rank=0 below layer {layer}, which reads its value"
        received = f"{firsts[-1]} channels" if firsts else "none"
        need(not self.value_rank or firsts[-1:] == [self.inner], expected, received, "correct value_rank")


@dataclass(frozen=True)
class ChannelMixConfig(PartConfig):
    """RWKV's feed-forward, which also reads the previous token: W_v relu(W_k x')²."""

    kind: ClassVar[str] = "channel_mix"
    mixes: ClassVar[bool] = False
    reads_past: ClassVar[bool] = True

    size: int  # hidden size

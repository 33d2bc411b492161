"""A window and a compressed memory of older tokens. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MixerConfig
from t2r_export.config.options import check_values, option
from t2r_export.config.validation import MAX_SIZE, need


@dataclass(frozen=True)
class CompressiveConfig(MixerConfig):
    """Softmax over a window and compressed blocks of older tokens (Rae et al. 2019, arXiv 1911.05507)."""

    kind: ClassVar[str] = "compressive"
    takes_norm_after: ClassVar[bool] = False
    takes_sink: ClassVar[bool] = False
    COMPRESSIONS: ClassVar[tuple[str, ...]] = ("conv", "mean", "max", "last")

    window: int = option(
        "Window size W: number of most recent tokens that are always visible, including the current one."
    )
    blocks: int = option("Compressed memory: number of blocks M that are kept.")
    rate: int = option("Number of tokens c that become one block.", 4, bounds=(2, MAX_SIZE))
    compression: str = option(
        "What a block is of its keys and values: a learned convolution, their mean, their maximum, or the last one.",
        "conv",
        COMPRESSIONS,
    )

    def __post_init__(self) -> None:
        check_values(self)

    def check(self, heads: HeadsConfig) -> None:
        super().check(heads)
        expected = "compressive layers without rotary positions: keys of several positions become one"
        do = "choose transformer_xl positions, or another mixer"
        need(heads.rotary is None, expected, "rotary positions", do)

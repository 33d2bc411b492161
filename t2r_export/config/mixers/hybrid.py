"""Hybrid layers: a softmax window and linear attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import CACHE_BITS, CACHE_CHOICES, Guard, MixerConfig
from t2r_export.config.mixers.linear import GATE, LinearConfig
from t2r_export.config.options import check_values, limited, option
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.validation import MAX_TURNED, need


@dataclass(frozen=True)
class HybridConfig(MixerConfig):
    """Softmax over a window and linear attention to all earlier tokens (Zhang et al. 2024, arXiv 2410.10254)."""

    kind: ClassVar[str] = "hybrid"
    takes_norm_after: ClassVar[bool] = False  # its window rotates by distances
    takes_sink: ClassVar[bool] = False
    MERGES: ClassVar[tuple[str, ...]] = ("sum", "gate", "token")
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "after")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated")  # rules with a normalizer z

    window: int = option("Window size W: number of most recent tokens, including the current one.")
    feature_size: int = option("Number of features per head: K.", usual=32)
    feature_map: str = option("Feature map of q and k (docs/mixers.md).", "relu", LinearConfig.FEATURE_MAPS)
    merge: str = option(
        "Merge of window and sums: one common normalizer (sum), a learned gate, or a gate computed from the token.",
        "sum",
        MERGES,
    )
    guard: Guard = None  # type: ignore[assignment]  # of the linear part, unless merge is sum; default as LinearConfig
    update_rule: str = option("Update rule for tokens that leave the window.", "linear", UPDATE_RULES)
    gate: str = option(GATE, "none", LinearConfig.GATES)
    sinks: int = option("Number of first tokens that stay visible (attention sinks).", 0)
    positions: str = option(
        "Rotary models: rotate before the feature map (keep), or rotate the features (after).", "keep", POSITIONS
    )
    rotary_size: int | None = option("positions after: number of rotated features per head; default all.", None)
    rotary_pairs: tuple[int, ...] = ()  # positions after: the pairs kept of `rotary_of` features; empty: all
    rotary_of: int = limited(0, bounds=(0, MAX_TURNED))
    frequency_scale: float = option("positions after: factor on the model's rotary frequencies.", 1.0)
    output_gate: bool = option("Gate the output with a sigmoid computed from the token.", False)
    map_scale: float = option(
        "merge sum, feature map relu: initial factor on W of the map; small, a student starts as its window alone.", 1.0
    )
    cache_bits: int = option(CACHE_BITS, 32, CACHE_CHOICES)

    def __post_init__(self) -> None:
        check_values(self)
        object.__setattr__(self, "guard", self.linear().guard)
        fine = self.map_scale == 1.0 or (self.merge == "sum" and self.feature_map == "relu")
        received = f"merge {self.merge}, feature_map {self.feature_map}"
        need(fine, "merge sum and feature_map relu with map_scale", received, "leave map_scale out")

    def linear(self) -> LinearConfig:
        """The config of the linear part."""
        names = {field.name for field in fields(LinearConfig)}
        return LinearConfig(**{one.name: getattr(self, one.name) for one in fields(self) if one.name in names})

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        return self.linear().feature_rotation(heads)

    def check(self, heads: HeadsConfig) -> None:
        super().check(heads)
        self.linear().check(heads)

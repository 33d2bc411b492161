"""A softmax window beside linear attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import Guard, MixerConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.options import check_values, option
from t2r_export.config.positions import RotaryConfig


@dataclass(frozen=True)
class HybridConfig(MixerConfig):
    """Linear attention to what is far and a softmax window on what is near (Zhang et al. 2024, arXiv 2410.10254)."""

    kind: ClassVar[str] = "hybrid"
    MERGED: ClassVar[dict[str, str]] = {"sum": "sum", "gate": "gate", "token": "a gate of the token"}  # for a person
    MERGES: ClassVar[tuple[str, ...]] = tuple(MERGED)
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "after")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated")  # those with a z

    window: int = option("Number of last tokens that a query sees, its own among them: W.")
    feature_size: int = option("Number of features per head: K.", usual=32)
    feature_map: str = option("Feature map of q and k (docs/mixers.md).", "relu", LinearConfig.FEATURE_MAPS)
    merge: str = option(
        "How window and sums are merged: by one common division, by a learned gate, or by one computed from the token.",
        "sum",
        MERGES,
    )
    guard: Guard = None  # type: ignore[assignment]  # of a gate's linear part; by the positions, as LinearConfig's
    update_rule: str = option("Rule by which the sums take in a token that leaves the window.", "linear", UPDATE_RULES)
    gate: str = option(
        "What the sums keep per step under a gated rule: a share fixed per head, or one computed from the token.",
        "none",
        LinearConfig.GATES,
    )
    sinks: int = option("Number of first tokens that every query sees beside the window.", 0)
    positions: str = option(
        "Rotary models: keep the rotation before the feature map, or rotate the features after it.", "keep", POSITIONS
    )
    rotary_size: int | None = option("positions after: number of features of a head that rotate; else all.", None)
    frequency_scale: float = option("positions after: factor of the model's rotary frequencies.", 1.0)

    def __post_init__(self) -> None:
        check_values(self)
        object.__setattr__(self, "guard", self.linear().guard)

    def linear(self) -> LinearConfig:
        """The linear part alone."""
        return LinearConfig(
            self.feature_size,
            guard=self.guard,
            feature_map=self.feature_map,
            update_rule=self.update_rule,
            gate=self.gate,
            positions=self.positions,
            rotary_size=self.rotary_size,
            frequency_scale=self.frequency_scale,
        )

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        return self.linear().feature_rotation(heads)

    def check(self, heads: HeadsConfig) -> None:
        self.linear().check(heads)

    def summary(self) -> str:
        first = f" and the first {self.sinks}" if self.sinks else ""
        rule = "" if self.update_rule == "linear" else f", update rule {self.update_rule}, gate {self.gate}"
        return (
            f"the last {self.window} tokens{first}, {self.feature_size} {self.feature_map} features of those before, "
            f"merged by {self.MERGED[self.merge]}{rule}{', features rotated' * (self.positions == 'after')}"
        )

    def state_summary(self, heads: HeadsConfig) -> str:
        first = f" and the first {self.sinks}" if self.sinks else ""
        return f"{self.linear().state_summary(heads)}, and k and v of the last {self.window} tokens{first}"

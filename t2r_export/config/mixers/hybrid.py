"""A softmax window beside linear attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from t2r_export.config.mixers.base import Guard, MixerConfig, option
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.validation import amount, choice, size

if TYPE_CHECKING:
    from t2r_export.config.model import ModelConfig


@dataclass(frozen=True)
class HybridConfig(MixerConfig):
    """Linear attention to what is far and a softmax window on what is near (Zhang et al. 2024, arXiv 2410.10254)."""

    kind: ClassVar[str] = "hybrid"
    MERGES: ClassVar[tuple[str, ...]] = ("sum", "gate")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated")  # those with a z

    window: int = option("Last tokens that a query sees, itself among them, W.")
    feature_size: int = option("Features of each head, K.")
    feature_map: str = option("What makes features of q and k.", "relu", LinearConfig.FEATURE_MAPS)
    merge: str = option("One division for the window and the sums, or a learned gate between the two.", "sum", MERGES)
    guard: Guard = Guard()  # of the gate's linear part; the sum's denominator is never small
    update_rule: str = option("How the sums take in a token that leaves the window.", "linear", UPDATE_RULES)
    gate: str = option(
        "Of the rule gated, what the sums keep at each step: a share fixed for each head, or one computed from the "
        "present token.",
        "none",
        LinearConfig.GATES,
    )
    sinks: int = option("First tokens of the text that every query sees beside the window.", 0)

    def __post_init__(self) -> None:
        size("window", self.window)
        amount("sinks", self.sinks)
        choice("merge", self.merge, self.MERGES)
        choice("update_rule", self.update_rule, self.UPDATE_RULES)
        self.linear()

    def linear(self) -> LinearConfig:
        """The linear part alone."""
        return LinearConfig(
            self.feature_size,
            guard=self.guard,
            feature_map=self.feature_map,
            update_rule=self.update_rule,
            gate=self.gate,
        )

    def check(self, model: ModelConfig) -> None:
        self.linear().check(model)

    def summary(self) -> str:
        first = f" and the first {self.sinks}" if self.sinks else ""
        rule = "" if self.update_rule == "linear" else f", update rule {self.update_rule}, gate {self.gate}"
        return (
            f"the last {self.window} tokens{first}, {self.feature_size} {self.feature_map} features of those before, "
            f"merged by {self.merge}{rule}"
        )

    def keeps(self, kv_heads: int, head_size: int) -> str:
        first = f" and the first {self.sinks}" if self.sinks else ""
        return f"{self.linear().keeps(kv_heads, head_size)}, and k and v of the last {self.window} tokens{first}"

"""Linear attention: its feature maps, normalizers and update rules, and what goes together. Imports without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MEMORY, Guard, MixerConfig, require_none_merged
from t2r_export.config.options import check_values, option
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.positions.base import check_rotated
from t2r_export.config.scalings import LinearScaling
from t2r_export.config.validation import flag, need

# a feature map -> whether K features are possible of a head of size d, and which are, for a person
FEATURE_SIZES: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "relu": (lambda K, d: True, "any number"),
    "elu": (lambda K, d: K == d, "the head size, {d}"),
    "rfa": (lambda K, d: K % 2 == 0, "even: a sine and a cosine of each random direction"),
    "favor": (lambda K, d: True, "any number"),
    "dpfp": (lambda K, d: K % (2 * d) == 0 and K < 4 * d * d, "{two_d} · n, with n from 1 to {most}"),
    "hedgehog": (lambda K, d: K % 2 == 0, "even: W x and its negative"),
}
FAVOR_HEAD = 128  # its largest feature is exp(d/2), and float32 ends at exp(88)


def usual_guard(positions: str | None) -> Guard:
    """Rotated, a numerator is not bounded by its denominator: with 1e-6 training diverged (docs/quality.md)."""
    return Guard(eps=1.0 if positions == "after" else Guard.eps)


@dataclass(frozen=True)
class LinearConfig(MixerConfig):
    """Linear attention (Katharopoulos et al. 2020) with a feature map; T2R's, relu(W_φ x + b_φ), unless it says so."""

    kind: ClassVar[str] = "linear"
    FEATURE_MAPS: ClassVar[tuple[str, ...]] = tuple(FEATURE_SIZES)
    LEARNED: ClassVar[tuple[str, ...]] = ("relu", "hedgehog")  # of each head and side, unless shared
    RANDOM: ClassVar[tuple[str, ...]] = ("rfa", "favor")
    NORMALIZERS: ClassVar[tuple[str, ...]] = ("z", "none", "group_norm", "rms_norm")
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "after", "drop")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated", "delta", "gated_delta")
    GATES: ClassVar[tuple[str, ...]] = ("none", "fixed", "data")

    feature_size: int = option("Number of features per head: K.", usual=32)
    shared_features: bool = option("Share one feature map between q and k of a head, as the authors' code does.", False)
    positions: str = option(
        "Rotary models: keep the rotation before the feature map, rotate the features after it, or drop it; after and "
        "drop can be folded. Models with ALiBi: drop it.",
        "keep",
        POSITIONS,
        usual="after",
        causal=True,
    )
    query_scale: float = option("Scale of q before the feature map; the authors use d ** -0.5.", 1.0)
    guard: Guard = None  # type: ignore[assignment]  # by the positions, in __post_init__
    folded: bool = False  # W_φ is inside the projections (eq. 8)
    feature_map: str = option("Feature map of q and k (docs/mixers.md).", "relu", FEATURE_MAPS)
    normalizer: str = option(
        "What the output is divided by: the state z, nothing, or its own norm per head.", "z", NORMALIZERS
    )
    sigma: float = option("rfa: width of the kernel; where it is learned, its initial value.", 1.0)
    fixed_sigma: bool = option("rfa: keep sigma as it is instead of learning it.", False)
    redraw: bool = option("rfa, favor: draw new random directions in every training step.", False, causal=True)
    memory: int = option(MEMORY, 0, causal=True)
    # `usual`: what a new student gets (t2r_export.config.students); the default is what older checkpoints mean
    update_rule: str = option(
        "Rule by which the state takes in a token (docs/mixers.md).", "linear", UPDATE_RULES, usual="gated", causal=True
    )
    gate: str = option(
        "What the state keeps per step under a gated rule: a share fixed per head, or one computed from the token.",
        "none",
        GATES,
        usual="data",
        causal=True,
    )
    moving_average: bool = option("gated: weigh the new token by the share that is not kept.", False, causal=True)
    rotary_size: int | None = option("positions after: number of features of a head that rotate; else all.", None)
    frequency_scale: float = option("positions after: factor of the model's rotary frequencies.", 1.0)
    conv: int = option(
        "Short causal convolution over φ's arguments and v: its number of taps; 0 is none.", 0, causal=True
    )
    output_gate: bool = option("Multiply the output by a gate that is computed from the token.", False, causal=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guard", usual_guard(self.positions) if self.guard is None else self.guard)
        check_values(self)
        self._check_rule()
        self._only("shared_features", self.shared_features, self.LEARNED)
        self._only("sigma", self.sigma != 1.0, ("rfa",))
        self._only("fixed_sigma", self.fixed_sigma, ("rfa",))
        self._only("redraw", self.redraw, self.RANDOM)
        flag("folded", self.folded)
        need(self.conv != 1, "0 (none) or at least 2 taps of the convolution", self.conv, "correct conv")
        need(isinstance(self.guard, Guard), "a guard with kind and eps", self.guard, "correct the guard")

    def _check_rule(self) -> None:
        gates = self.GATES[1:] if "gated" in self.update_rule else self.GATES[:1]
        rest = tuple(name for name in self.NORMALIZERS if name != "z")
        rule = f"for the update rule {self.update_rule}"
        need(self.gate in gates, f"a gate of {', '.join(gates)} {rule}", f"gate {self.gate}", "choose one of those")
        need(
            not self.delta or self.normalizer in rest,
            f"a normalizer of {', '.join(rest)} {rule}, which has no z",
            f"normalizer {self.normalizer}",
            "choose one of those",
        )
        need(
            not self.moving_average or self.update_rule == "gated",
            "moving_average only with the update rule gated",
            self.update_rule,
            "leave moving_average out",
        )
        need(
            not self.memory or self.update_rule == "linear",
            "a memory only with the update rule linear",
            self.update_rule,
            "leave memory out",
        )

    @property
    def takes_bias(self) -> bool:
        return self.positions == "drop"

    @property
    def packed(self) -> bool:
        return self.folded

    @property
    def delta(self) -> bool:
        """Whether a key's old value is taken out before the new one goes in."""
        return "delta" in self.update_rule

    def check_merged(self) -> None:
        need(
            not self.delta,
            "softmax layers, or linear ones of the update rules linear and gated, that are merged",
            f"a linear layer of the rule {self.update_rule}",
            "choose one of those",
        )
        require_none_merged(self, "memory", "conv")

    def _only(self, name: str, given: bool, maps: tuple[str, ...]) -> None:
        """An option that only some feature maps have is not silently ignored by the others."""
        fine = not given or self.feature_map in maps
        need(fine, f"{name} only with the feature map {' or '.join(maps)}", self.feature_map, f"leave {name} out")

    def check(self, heads: HeadsConfig) -> None:
        self._check_feature_size(heads.head_size)
        need(
            not self.shared_features or heads.kv_heads == heads.heads,
            "as many kv heads as query heads where q and k share a feature map",
            f"{heads.kv_heads} kv heads, {heads.heads} query heads",
            "leave shared features out",
        )
        need(
            not self.folded or heads.rotary is None or self.positions != "keep",
            "an unfolded layer where positions are rotated before φ",
            "folded=True with positions='keep'",
            "set positions to 'after' or 'drop', or folded to false",
        )
        self._check_rotation(heads)

    def _check_rotation(self, heads: HeadsConfig) -> None:
        given = self.rotary_size is not None or self.frequency_scale != 1.0
        if self.positions != "after":
            need(
                not given, "rotary_size and frequency_scale only with positions after", self.positions, "leave them out"
            )
            return
        need(heads.rotary is not None, "positions after only for a rotary model", "no rotary", "leave them out")
        rotated = self.feature_size if self.rotary_size is None else self.rotary_size
        check_rotated("feature_size" if self.rotary_size is None else "rotary_size", rotated, "rotary")
        need(rotated <= self.feature_size, f"a rotary_size of at most {self.feature_size}", rotated, "correct it")

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        if self.positions != "after" or heads.rotary is None:
            return None
        # scalings for long contexts are for angles that the model was trained with; these it learns anew
        scaling = None if self.frequency_scale == 1.0 else LinearScaling(1.0 / self.frequency_scale)
        return RotaryConfig(
            heads.rotary.theta, scaling
        ), self.feature_size if self.rotary_size is None else self.rotary_size

    def _check_feature_size(self, d: int) -> None:
        possible, which = FEATURE_SIZES[self.feature_map]
        need(
            possible(self.feature_size, d),
            f"feature_size to be {which.format(d=d, two_d=2 * d, most=2 * d - 1)}, with the feature map "
            f"{self.feature_map}",
            self.feature_size,
            "correct feature_size",
        )
        need(
            self.feature_map != "favor" or d <= FAVOR_HEAD,
            f"a head size of at most {FAVOR_HEAD} with the feature map favor",
            d,
            "choose another feature map",
        )

    def summary(self) -> str:
        guard = f"guard {self.guard.kind} {self.guard.eps:g}"
        divided = guard if self.normalizer == "z" else f"normalizer {self.normalizer}"
        memory = f", memory of {self.memory}" if self.memory else ""
        rule = "" if self.update_rule == "linear" else f", update rule {self.update_rule}"
        gate = "" if self.gate == "none" else f", gate {self.gate}{', moving average' * self.moving_average}"
        features = f"{self.feature_size} {self.feature_map} features"
        beside = f"{f', convolution of {self.conv} taps' if self.conv else ''}{', output gate' * self.output_gate}"
        return f"{features}, {divided}, positions {self.positions}{memory}{rule}{gate}{beside}"

    def state_summary(self, heads: HeadsConfig) -> str:
        kv_heads = heads.kv_heads
        S = f"S ({kv_heads} × {self.feature_size} × {heads.head_size})"
        S = f"{S} and z ({kv_heads} × {self.feature_size})" if self.normalizer == "z" else S
        return f"{S}, and what the convolution read of the last {self.conv - 1} tokens" if self.conv else S

"""Linear attention: feature maps, normalizers, update rules and their combinations. Imports without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MEMORY, MERGED, Guard, MixerConfig, require_none_merged
from t2r_export.config.options import check_values, limited, option
from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.positions.base import check_rotated
from t2r_export.config.scalings import ChosenScaling, LinearScaling, ScalingConfig
from t2r_export.config.validation import MAX_TURNED, need

# feature map -> whether it has K features for head size d, and the condition as text
FEATURE_SIZES: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "relu": (lambda K, d: True, "any number"),
    "relu2": (lambda K, d: True, "any number"),
    "elu": (lambda K, d: K == d, "the head size, {d}"),
    "rfa": (lambda K, d: K % 2 == 0, "even (a sine and a cosine per random direction)"),
    "favor": (lambda K, d: True, "any number"),
    "dpfp": (lambda K, d: K % (2 * d) == 0 and K < 4 * d * d, "{two_d} · n, with n from 1 to {most}"),
    "hedgehog": (lambda K, d: K % 2 == 0, "even (W x and -W x)"),
}
GATE = (
    "Gate of a gated rule: none, fixed per head, computed from the token per head (data), or per pair of features that "
    "rotate together (pair)."
)
FAVOR_HEAD = 128  # features reach exp(d/2), float32 only exp(88)


def usual_guard(positions: str | None) -> Guard:
    """The default guard. Rotated numerators can exceed their denominators: eps 1e-6 diverged (docs/quality.md)."""
    return Guard(eps=1.0 if positions == "after" else Guard.eps)


@dataclass(frozen=True)
class LinearConfig(MixerConfig):
    """Linear attention (Katharopoulos et al. 2020); default feature map of T2R, relu(W_φ x + b_φ)."""

    kind: ClassVar[str] = "linear"
    FEATURE_MAPS: ClassVar[tuple[str, ...]] = tuple(FEATURE_SIZES)
    LEARNED: ClassVar[tuple[str, ...]] = ("relu", "relu2", "hedgehog")  # per head, for q and k unless shared
    RANDOM: ClassVar[tuple[str, ...]] = ("rfa", "favor")
    NORMALIZERS: ClassVar[tuple[str, ...]] = ("z", "none", "group_norm", "rms_norm")
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "after", "drop")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated", "delta", "gated_delta")
    GATES: ClassVar[tuple[str, ...]] = ("none", "fixed", "data", "pair")
    MAP_INITS: ClassVar[tuple[str, ...]] = ("random", "keys")
    # (option, option that it requires, values of the latter)
    ONLY: ClassVar[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
        ("shared_features", "feature_map", LEARNED),
        ("sigma", "feature_map", ("rfa",)),
        ("fixed_sigma", "feature_map", ("rfa",)),
        ("redraw", "feature_map", RANDOM),
        ("map_init", "feature_map", ("relu", "relu2")),
        ("moving_average", "update_rule", ("gated",)),
        ("memory", "update_rule", ("linear",)),
    )

    feature_size: int = option("Number of features per head: K.", usual=32)
    shared_features: bool = option("Share the feature map between q and k, as the T2R authors' code does.", False)
    positions: str = option(
        "Rotary models: rotate before the feature map (keep), rotate the features (after), or remove the rotation "
        "(drop); after and drop can be folded. Models with positions in scores, such as ALiBi's: drop.",
        "keep",
        POSITIONS,
        usual="after",
        causal=True,
    )
    query_scale: float = option("Scale of q before the feature map; the T2R authors use d ** -0.5.", 1.0)
    guard: Guard = None  # type: ignore[assignment]  # default: `usual_guard`
    folded: bool = False  # W_φ is folded into the projections (eq. 8)
    feature_map: str = option("Feature map of q and k (docs/mixers.md).", "relu", FEATURE_MAPS)
    normalizer: str = option("Normalization of the output: by the state z, none, or a norm per head.", "z", NORMALIZERS)
    sigma: float = option("rfa: kernel width, or its initial value if learned.", 1.0)
    fixed_sigma: bool = option("rfa: do not train sigma.", False)
    redraw: bool = option("rfa, favor: redraw the random directions at every training step.", False, causal=True)
    memory: int = option(MEMORY, 0, causal=True)
    # defaults are T2R's ungated sums; `usual` is for new students (t2r_export.config.students)
    update_rule: str = option(
        "Update rule of the state (docs/mixers.md).", "linear", UPDATE_RULES, usual="gated", causal=True
    )
    gate: str = option(
        GATE,
        "none",
        GATES,
        usual="data",
        causal=True,
    )
    moving_average: bool = option("gated: weight the new token by 1 - gate.", False, causal=True)
    rotary_size: int | None = option("positions after: number of rotated features per head; default all.", None)
    rotary_pairs: tuple[int, ...] = ()  # positions after: the pairs kept of `rotary_of` features; empty: all
    rotary_of: int = limited(0, bounds=(0, MAX_TURNED))
    frequency_scale: float = option("positions after: factor on the model's rotary frequencies.", 1.0)
    conv: int = option("Kernel size of a short causal convolution over φ's arguments and v; 0: none.", 0, causal=True)
    output_gate: bool = option("Gate the output with a sigmoid computed from the token.", False, causal=True)
    map_init: str = option(
        "relu, relu2: start of W and b: random, or from the teacher's keys when transfer begins.",
        "random",
        MAP_INITS,
        causal=True,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "guard", usual_guard(self.positions) if self.guard is None else self.guard)
        check_values(self)
        self._check_rule()
        for name, option_name, values in self.ONLY:
            given, value = getattr(self, name) != self.__dataclass_fields__[name].default, getattr(self, option_name)
            expected = f"{name} only with the {option_name.replace('_', ' ')} {' or '.join(values)}"
            need(not given or value in values, expected, value, f"leave {name} out")
        need(self.conv != 1, "0 (none) or at least 2 taps of the convolution", self.conv, "correct conv")
        need(isinstance(self.guard, Guard), "a guard with kind and eps", self.guard, "correct the guard")

    def _check_rule(self) -> None:
        gates = self.GATES[1:] if "gated" in self.update_rule else self.GATES[:1]
        rest = tuple(name for name in self.NORMALIZERS if name != "z")
        rule = f"for the update rule {self.update_rule}"
        need(self.gate in gates, f"a gate of {', '.join(gates)} {rule}", f"gate {self.gate}", "choose one of those")
        expected = f"a normalizer of {', '.join(rest)} {rule}, which has no z"
        fine = not self.delta or self.normalizer in rest
        need(fine, expected, f"normalizer {self.normalizer}", "choose one of those")
        fine = self.gate != "pair" or (self.positions == "after" and self._rotated == self.feature_size)
        received = f"positions {self.positions}, rotary_size {self.rotary_size}"
        need(fine, "positions after, and all features rotated, for gate pair", received, "choose gate data")

    @property
    def gates(self) -> int:
        """Gates per kv head that are computed from the token."""
        return {"data": 1, "pair": self.feature_size // 2}.get(self.gate, 0)

    @property
    def scored(self) -> bool:
        return False

    def takes(self, positions: PositionConfig) -> bool:
        return self.positions == "drop"

    @property
    def packed(self) -> bool:
        return self.folded

    @property
    def delta(self) -> bool:
        """Whether the rule subtracts the value stored under a key before it adds the new one."""
        return "delta" in self.update_rule

    def check_merged(self) -> None:
        need(not self.delta, MERGED, f"a linear layer with the rule {self.update_rule}", "choose one of those")
        require_none_merged(self, "memory", "conv")

    def check(self, heads: HeadsConfig) -> None:
        super().check(heads)
        self._check_feature_size(heads.head_size)
        received = f"{heads.kv_heads} kv heads, {heads.heads} query heads"
        shares = not self.shared_features or heads.kv_heads == heads.heads
        need(shares, "as many kv heads as query heads with shared_features", received, "leave shared_features out")
        foldable = not self.folded or heads.rotary is None or self.positions != "keep"
        do = "set positions to 'after' or 'drop', or folded to false"
        need(foldable, "an unfolded layer if q and k rotate before φ", "folded=True with positions='keep'", do)
        self._check_rotation(heads)

    def _check_rotation(self, heads: HeadsConfig) -> None:
        if self.positions != "after":
            expected = "rotary_size, rotary_pairs and frequency_scale only with positions after"
            given = self.rotary_size is not None or self.rotary_pairs or self.frequency_scale != 1.0
            need(not given, expected, self.positions, "leave them out")
            return
        rotary = heads.rotary
        need(rotary is not None, "positions after only for a rotary model", "no rotary", "leave them out")
        assert rotary is not None
        rotated = self._rotated
        check_rotated("feature_size" if self.rotary_size is None else "rotary_size", rotated, "rotary")
        need(rotated <= self.feature_size, f"a rotary_size of at most {self.feature_size}", rotated, "correct it")
        if (scaling := self._scaling()) is not None:
            scaling.check(rotary.theta, rotated)

    @property
    def _rotated(self) -> int:
        """Number of rotated features per head."""
        return self.feature_size if self.rotary_size is None else self.rotary_size

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        if self.positions != "after" or heads.rotary is None:
            return None
        # the model's own long-context scaling does not apply: training adapts to these angles
        return RotaryConfig(heads.rotary.theta, self._scaling()), self._rotated

    def _scaling(self) -> ScalingConfig | None:
        if self.rotary_pairs:
            return ChosenScaling(self.rotary_pairs, self.rotary_of, 1.0 / self.frequency_scale)
        return None if self.frequency_scale == 1.0 else LinearScaling(1.0 / self.frequency_scale)

    def _check_feature_size(self, d: int) -> None:
        possible, which = FEATURE_SIZES[self.feature_map]
        sizes = which.format(d=d, two_d=2 * d, most=2 * d - 1)
        expected = f"feature_size to be {sizes}, with the feature map {self.feature_map}"
        need(possible(self.feature_size, d), expected, self.feature_size, "correct feature_size")
        expected = f"a head size of at most {FAVOR_HEAD} with the feature map favor"
        need(self.feature_map != "favor" or d <= FAVOR_HEAD, expected, d, "choose another feature map")

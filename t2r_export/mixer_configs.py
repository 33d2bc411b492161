"""What each kind of token mixer can be asked for, as plain data: a config a kind, in one table.

Imports without torch. A new mixer is a config here, with a line in `MIXER_CONFIGS`, and a class in
`t2r_export.mixers`, with a line in its `MIXERS` under the same kind. What a kind cannot be in a given model is the
business of its `check`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from t2r_export.validation import amount, choice, fields, flag, need, number, size

if TYPE_CHECKING:
    from t2r_export.config import ModelConfig


def option(help: str, default: Any = dataclasses.MISSING, choices: tuple[str, ...] = ()) -> Any:
    """A field that a person sets: `t2r convert` makes an option of it, with this help. Without a default: needed."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class Guard:
    """How the denominator φ(q)·z is kept from zero: `clamp` is max(den, eps), `add` is den + eps.

    Part of the model: it is the same in training, in the eager step, in the graph and in every runtime.
    """

    kind: str = "add"
    eps: float = 1e-6

    KINDS: ClassVar[tuple[str, ...]] = ("clamp", "add")

    def __post_init__(self) -> None:
        choice("guard kind", self.kind, self.KINDS)
        number("guard eps", self.eps)


@dataclass(frozen=True)
class MixerConfig:
    """Base of the mixers' configs."""

    kind: ClassVar[str]

    @property
    def folded(self) -> bool:
        """Whether the exported form of the weights has taken the place of the trained one."""
        return False

    def check(self, model: ModelConfig) -> None:
        """Refuse with a UserError what a layer of this `model` cannot be."""

    def summary(self) -> str:
        """The options for a person, after the kind."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the kind; `mixer_from_dict` gives an equal config back."""
        values = dataclasses.asdict(self)
        # left out where there is none: layers without keep their files, byte for byte
        return {"kind": self.kind, **{key: value for key, value in values.items() if (key, value) != ("memory", 0)}}


@dataclass(frozen=True)
class SoftmaxConfig(MixerConfig):
    """Causal softmax attention with a cache that grows by one key and value a step."""

    kind: ClassVar[str] = "softmax"

    memory: int = option("Trained keys and values of each kv head that every token sees: persistent memory.", 0)

    def __post_init__(self) -> None:
        amount("memory", self.memory)

    def summary(self) -> str:
        return f"memory of {self.memory}" if self.memory else ""


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


@dataclass(frozen=True)
class LinearConfig(MixerConfig):
    """Linear attention (Katharopoulos et al. 2020) with a feature map; T2R's, relu(W_φ x + b_φ), unless it says so."""

    kind: ClassVar[str] = "linear"
    FEATURE_MAPS: ClassVar[tuple[str, ...]] = tuple(FEATURE_SIZES)
    LEARNED: ClassVar[tuple[str, ...]] = ("relu", "hedgehog")  # of each head and side, unless shared
    RANDOM: ClassVar[tuple[str, ...]] = ("rfa", "favor")
    NORMALIZERS: ClassVar[tuple[str, ...]] = ("z", "none", "group_norm", "rms_norm")
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "drop")
    UPDATE_RULES: ClassVar[tuple[str, ...]] = ("linear", "gated", "delta", "gated_delta")
    GATES: ClassVar[tuple[str, ...]] = ("none", "fixed", "data")

    feature_size: int = option("Features of each head, K.")
    shared_features: bool = option("One feature map for q and k of a head, as the authors' code has.", False)
    positions: str = option(
        "Rotary models: rotate q and k before the feature map, or not, so that the layer can be folded.",
        "keep",
        POSITIONS,
    )
    query_scale: float = option("Multiplies q before the feature map; the authors use d ** -0.5.", 1.0)
    guard: Guard = Guard()
    folded: bool = False  # W_φ is inside the projections (eq. 8)
    feature_map: str = option("What makes features of q and k: docs/mixers.md.", "relu", FEATURE_MAPS)
    normalizer: str = option(
        "What the sum over tokens is divided by: the state z, nothing, or its own size, head by head.", "z", NORMALIZERS
    )
    sigma: float = option("Of rfa: the width of its kernel, at the start where it is learned.", 1.0)
    fixed_sigma: bool = option("Of rfa: do not learn sigma.", False)
    redraw: bool = option("Of rfa and favor: other random directions in every training step.", False)
    memory: int = option("Trained keys and values of each kv head that every token sees: persistent memory.", 0)
    update_rule: str = option("How the state takes in a token: docs/mixers.md.", "linear", UPDATE_RULES)
    gate: str = option(
        "Of the gated rules, what the state keeps: a share fixed for each head, or one computed from the token.",
        "none",
        GATES,
    )
    moving_average: bool = option("Of the rule gated: what is not kept is the new token's share.", False)

    def __post_init__(self) -> None:
        size("feature_size", self.feature_size)
        amount("memory", self.memory)
        choice("feature_map", self.feature_map, self.FEATURE_MAPS)
        choice("normalizer", self.normalizer, self.NORMALIZERS)
        number("sigma", self.sigma)
        flag("fixed_sigma", self.fixed_sigma)
        flag("redraw", self.redraw)
        self._check_rule()
        self._only("shared_features", self.shared_features, self.LEARNED)
        self._only("sigma", self.sigma != 1.0, ("rfa",))
        self._only("fixed_sigma", self.fixed_sigma, ("rfa",))
        self._only("redraw", self.redraw, self.RANDOM)
        choice("positions", self.positions, self.POSITIONS)
        number("query_scale", self.query_scale)
        flag("shared_features", self.shared_features)
        flag("folded", self.folded)
        need(isinstance(self.guard, Guard), "a guard with kind and eps", repr(self.guard), "correct the guard")

    def _check_rule(self) -> None:
        choice("update_rule", self.update_rule, self.UPDATE_RULES)
        choice("gate", self.gate, self.GATES)
        flag("moving_average", self.moving_average)
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
    def delta(self) -> bool:
        """Whether a key's old value is taken out before the new one goes in."""
        return "delta" in self.update_rule

    def _only(self, name: str, given: bool, maps: tuple[str, ...]) -> None:
        """An option that only some feature maps have is not silently ignored by the others."""
        fine = not given or self.feature_map in maps
        need(fine, f"{name} only with the feature map {' or '.join(maps)}", self.feature_map, f"leave {name} out")

    def check(self, model: ModelConfig) -> None:
        self._check_feature_size(model.head_size)
        need(
            not self.shared_features or model.kv_heads == model.heads,
            "as many kv heads as query heads where q and k share a feature map",
            f"{model.kv_heads} kv heads, {model.heads} query heads",
            "leave shared features out",
        )
        need(
            not self.folded or model.position != "rotary" or self.positions == "drop",
            "an unfolded layer where positions are rotated before φ",
            "folded=True with positions='keep'",
            "set positions to 'drop', or folded to false",
        )

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
        return f"{features}, {divided}, positions {self.positions}{memory}{rule}{gate}"


@dataclass(frozen=True)
class WindowConfig(MixerConfig):
    """Softmax attention over the first tokens and the last ones (Xiao et al. 2023, arXiv 2309.17453)."""

    kind: ClassVar[str] = "window"

    window: int = option("Last tokens that a query sees, itself among them, W.")
    sinks: int = option("First tokens of the text that every query sees beside them.", 4)
    memory: int = option("Trained keys and values of each kv head that every token sees: persistent memory.", 0)

    def __post_init__(self) -> None:
        size("window", self.window)
        amount("sinks", self.sinks)
        amount("memory", self.memory)

    def summary(self) -> str:
        memory = f", memory of {self.memory}" if self.memory else ""
        return f"the last {self.window} tokens and the first {self.sinks}{memory}"


@dataclass(frozen=True)
class LSTMConfig(MixerConfig):
    """A layer of long short-term memory, as many units as the model is wide."""

    kind: ClassVar[str] = "lstm"


@dataclass(frozen=True)
class GRUConfig(MixerConfig):
    """A layer of gated recurrent units, as many as the model is wide."""

    kind: ClassVar[str] = "gru"


@dataclass(frozen=True)
class SpanConfig(MixerConfig):
    """Softmax attention whose heads learn how far they look back (Sukhbaatar et al. 2019, arXiv 1905.07799)."""

    kind: ClassVar[str] = "span"

    span: int = option("The longest that a head can look back, in tokens, itself among them.")
    ramp: int = option("Tokens over which the mask falls from 1 to 0 behind a head's span.", 32)
    span_loss: float = option("What the longest span of all heads adds to the loss.", 0.02)
    folded: bool = False  # every kv head has a buffer of its own length, and the masks are constants
    spans: tuple[int, ...] = ()  # those lengths, where folded

    def __post_init__(self) -> None:
        size("span", self.span)
        size("ramp", self.ramp)
        need(self.ramp <= self.span, f"a ramp of at most the span, {self.span}", self.ramp, "correct ramp")
        number("span_loss", self.span_loss, positive=False)
        flag("folded", self.folded)
        need(isinstance(self.spans, list | tuple), "spans to be a list", type(self.spans).__name__, "correct spans")
        object.__setattr__(self, "spans", tuple(self.spans))
        for length in self.spans:
            size("spans", length, self.span)

    def check(self, model: ModelConfig) -> None:
        wanted = model.kv_heads if self.folded else 0
        need(len(self.spans) == wanted, f"{wanted} spans", f"{len(self.spans)}", "correct spans")

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "spans": list(self.spans)}

    def summary(self) -> str:
        spans = f"the last {', '.join(map(str, self.spans))}" if self.folded else f"up to the last {self.span}"
        return f"{spans} tokens, ramp {self.ramp}"


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


MIXER_CONFIGS: dict[str, type[MixerConfig]] = {
    c.kind: c for c in (SoftmaxConfig, LinearConfig, WindowConfig, SpanConfig, HybridConfig, LSTMConfig, GRUConfig)
}


def mixer_from_dict(data: Mapping[str, Any]) -> MixerConfig:
    """A layer's config from plain data with its `kind`. Raises UserError for a missing, unknown or impossible value."""
    need(isinstance(data, Mapping), "a layer's config to be a JSON object", type(data).__name__, "correct the config")
    values = dict(data)
    kind = values.pop("kind", None)
    choice("mixer kind", kind, tuple(MIXER_CONFIGS))
    cls = MIXER_CONFIGS[str(kind)]
    values = fields(cls, values, f"a {kind} layer's config")
    if isinstance(values.get("guard"), Mapping):
        values["guard"] = Guard(**fields(Guard, values["guard"], "the guard"))
    return cls(**values)

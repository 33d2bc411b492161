"""What each kind of token mixer can be asked for, as plain data: a config a kind, in one table.

Imports without torch. A new mixer is a config here, with a line in `MIXER_CONFIGS`, and a class in
`t2r_export.mixers`, with a line in its `MIXERS` under the same kind. What a kind cannot be in a given model is the
business of its `check`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
        return {"kind": self.kind, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class SoftmaxConfig(MixerConfig):
    """Causal softmax attention with a cache that grows by one key and value a step."""

    kind: ClassVar[str] = "softmax"


@dataclass(frozen=True)
class LinearConfig(MixerConfig):
    """Linear attention with T2R's learned feature map φ(x) = relu(W_φ x + b_φ) (Kasai et al. 2021, eq. 6)."""

    kind: ClassVar[str] = "linear"
    FEATURE_MAPS: ClassVar[tuple[str, ...]] = ("relu",)
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "drop")

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
    feature_map: str = option("What makes features of q and k.", "relu", FEATURE_MAPS)

    def __post_init__(self) -> None:
        size("feature_size", self.feature_size)
        choice("feature_map", self.feature_map, self.FEATURE_MAPS)
        choice("positions", self.positions, self.POSITIONS)
        number("query_scale", self.query_scale)
        flag("shared_features", self.shared_features)
        flag("folded", self.folded)
        need(isinstance(self.guard, Guard), "a guard with kind and eps", repr(self.guard), "correct the guard")

    def check(self, model: ModelConfig) -> None:
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

    def summary(self) -> str:
        return f"{self.feature_size} features, guard {self.guard.kind} {self.guard.eps:g}, positions {self.positions}"


@dataclass(frozen=True)
class WindowConfig(MixerConfig):
    """Softmax attention over the first tokens and the last ones (Xiao et al. 2023, arXiv 2309.17453)."""

    kind: ClassVar[str] = "window"

    window: int = option("Last tokens that a query sees, itself among them, W.")
    sinks: int = option("First tokens of the text that every query sees beside them.", 4)

    def __post_init__(self) -> None:
        size("window", self.window)
        amount("sinks", self.sinks)

    def summary(self) -> str:
        return f"the last {self.window} tokens and the first {self.sinks}"


MIXER_CONFIGS: dict[str, type[MixerConfig]] = {c.kind: c for c in (SoftmaxConfig, LinearConfig, WindowConfig)}


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

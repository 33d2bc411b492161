"""The base of attention mixer configs. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.options import option
from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import choice, need, number
from t2r_runtime.errors import UserError

MEMORY = "Persistent memory: number of trained key/value pairs per kv head, visible to every token."
CACHE_CHOICES = (32, 8)
CACHE_BITS = "Bits of each stored number of keys and values: float32, or 8 with a scale per head and token."

MERGED = "softmax layers, or linear layers with the update rule linear or gated, in merged layers"


@dataclass(frozen=True)
class Guard:
    """Guard against division by zero in φ(q)·z: `clamp` is max(φ(q)·z, eps), `add` is φ(q)·z + eps.

    Part of the model: training, eager steps, graphs and all runtimes use the same guard.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("clamp", "add")

    kind: str = option("Guard of the denominator: clamp it to eps, or add eps.", "add", KINDS)
    eps: float = option(
        "Lower bound of the denominator (clamp), or added term (add).", 1e-6, usual="1e-06, with positions after 1"
    )

    def __post_init__(self) -> None:
        choice("guard kind", self.kind, self.KINDS)
        number("guard eps", self.eps)


@dataclass(frozen=True)
class MixerConfig(Kind):
    """The operation between the q, k, v projections and the output projection of attention."""

    TABLE: ClassVar[str] = "t2r_export.config.mixers:INSIDES"
    grows: ClassVar[bool] = False  # the states grow with every token
    takes_norm_after: ClassVar[bool] = True  # q and k can be normalized after the rotation
    takes_sink: ClassVar[bool] = True  # its softmax can have a trained logit, or it has no softmax
    borrows: ClassVar[bool] = False  # uses the attention weights of the layer below

    @property
    def folded(self) -> bool:
        """Whether the weights are in their exported form."""
        return False

    @property
    def scored(self) -> bool:
        """Whether it computes scores of queries and keys, which positions can change."""
        return not self.borrows

    def takes(self, positions: PositionConfig) -> bool:
        """Whether it takes positions that change scores."""
        return True

    @property
    def packed(self) -> bool:
        """Whether one packed projection computes q, k and v with the feature map's affine part."""
        return False

    @property
    def lends(self) -> bool:
        """Whether the layer above can use this layer's attention weights."""
        return False

    def check(self, heads: HeadsConfig) -> None:
        """Raise UserError if the mixer does not fit these heads."""
        fits = self.takes_norm_after or not heads.qk_norm_after
        expected = "softmax, window or linear layers where q and k are normalized after the rotation (qk_norm_after)"
        need(fits, expected, f"a {self.kind} layer", "choose one of those")
        fits = not heads.sink or (self.takes_sink and not getattr(self, "memory", 0))
        expected = "softmax, window or linear layers without memory where attention has a sink"
        need(fits, expected, f"a {self.kind} layer", "choose one of those")

    def check_at_once(self, what: str) -> None:
        """Raise UserError for options marked `causal`, which bidirectional and cross-attention lack."""
        what = what.removesuffix("_attention")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            fine = not field.metadata.get("causal") or value == field.default
            need(fine, f"no {field.name} in {what} layers", f"{field.name} {value}", f"leave {field.name} out")

    def check_merged(self) -> None:
        """Raise UserError if the mixer has no merged form: the state must be a sum over tokens, or a cache."""
        raise UserError(MERGED, f"a {self.kind} layer", "choose one of those")

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        """The rotation after the feature map, and the number of rotated features per head; None: no rotation."""
        return None


def require_none_merged(config: MixerConfig, *names: str) -> None:
    """Raise UserError for options that merged attention lacks."""
    for name in names:
        given = getattr(config, name)
        need(not given, f"no {name} in merged layers", str(given), "leave it out")

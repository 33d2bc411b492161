"""Self-attention and cross-attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import INSIDES, MixerConfig
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.positions import PositionConfig, RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import choice, need

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "mish", "gelu_10")


@dataclass(frozen=True, kw_only=True)
class InsideConfig(HeadsConfig, PartConfig):
    """Base of the parts with a mixer between their projections."""

    form: ClassVar[str]  # key of `Inside.forms`

    inside: MixerConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        need(isinstance(self.inside, MixerConfig), f"a mixer inside {self.kind}", repr(self.inside), "correct the part")
        possible = tuple(kind for kind, entry in INSIDES.items() if self.form in entry.forms)
        choice(f"the kind of mixer inside {self.kind}", self.inside.kind, possible)
        if self.form != "causal":
            need(not self.sink, f"no sink in {self.kind}", "a sink", "leave it out")
            self.inside.check_at_once(self.kind)
        if self.positions is not None and self.positions.biases:
            self._check_positions(self.positions)
        self.inside.check(self)

    def _check_positions(self, positions: PositionConfig) -> None:
        kind, layers = (
            positions.kind,
            "softmax, window, span or hybrid" if positions.adds else "softmax, window or hybrid",
        )
        need(self.form == "causal", f"{kind} positions only in causal attention", self.kind, "choose others")
        expected = f"{layers} layers with {kind} positions, or linear ones that drop them"
        received = f"a {self.inside.kind} layer"
        need(self.inside.takes(positions), expected, received, "choose another mixer, or positions=drop")

    def _check_plain(self, what: str, do: str) -> None:
        """Refuse positions, position_scale, qk_norm and gate with a UserError."""
        given = [name for name in ("positions", "position_scale", "qk_norm", "gate", "sink") if getattr(self, name)]
        need(not given, f"{what} without positions, qk_norm, gate and sink", ", ".join(given), do)

    @property
    def label(self) -> str:
        return self.inside.kind

    @property
    def grows(self) -> bool:
        return self.inside.grows

    @property
    def folded(self) -> bool:
        return self.inside.folded

    @property
    def borrows(self) -> bool:
        return self.inside.borrows

    @property
    def lends(self) -> bool:
        return self.inside.lends and not self.sink

    @property
    def cache_size(self) -> int:
        return 2 * self.kv_heads * self.head_size

    def rotations(self) -> list[tuple[RotaryConfig, int]]:
        if self.rotary is None:
            return []
        of_features = self.inside.feature_rotation(self)
        return [(self.rotary, self.rotary.rotated(self.head_size)), *([] if of_features is None else [of_features])]

    def summary(self) -> str:
        return self.inside.summary()


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(InsideConfig):
    """Causal self-attention with any mixer."""

    kind: ClassVar[str] = "attention"
    form: ClassVar[str] = "causal"


@dataclass(frozen=True, kw_only=True)
class EncoderAttentionConfig(InsideConfig):
    """Bidirectional self-attention of an encoder."""

    kind: ClassVar[str] = "encoder_attention"
    form: ClassVar[str] = "encoder"
    group: ClassVar[str] = "encoder"


@dataclass(frozen=True, kw_only=True)
class CrossConfig(InsideConfig):
    """Cross-attention of a decoder layer to the encoder output, without positions."""

    kind: ClassVar[str] = "cross"
    form: ClassVar[str] = "cross"
    reads_source: ClassVar[bool] = True
    group: ClassVar[str] = "crosses"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_plain("cross layers", "leave them out")

    @property
    def cache_size(self) -> int:
        return 0  # the source is constant


class JointConfig(Kind):
    """A choice of cross-attention that replaces it: one part per layer attends to the prefix and to the source."""

    WEIGHTS: ClassVar[str]  # "module:function" that converts the weights of a layer, as t2r_export.lab.merge:merge

    feed_forward: bool

    def part(
        self, own: AttentionConfig, hidden: int = 0, hidden_bias: bool = True, activation: str = "relu"
    ) -> PartConfig:
        """The part that replaces self-attention `own`; `hidden` is the size of a feed-forward inside, 0: none."""
        raise NotImplementedError

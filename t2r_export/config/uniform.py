"""A shorthand for models with equal layers, for recipes, importers and tests. Imports without torch.

Every layer is a mixer, cross-attention if there is an encoder, and a feed-forward, with equal norms. `build` returns
the explicit ModelConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.layer import LayerConfig, mixed
from t2r_export.config.mixers import INSIDES, MixerConfig
from t2r_export.config.model import DecoderConfig, EncoderConfig, ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.options import check_values, limited
from t2r_export.config.parts import (
    PARTS,
    AttentionConfig,
    CrossConfig,
    DenseConfig,
    EncoderAttentionConfig,
    InsideConfig,
    JointConfig,
    PartConfig,
)
from t2r_export.config.plain import of_table
from t2r_export.config.positions import POSITIONS, LearnedConfig, PositionConfig
from t2r_export.config.tagged import Entry, HasConfig, Kind, resolve
from t2r_export.config.validation import MAX_VOCABULARY, need

MAX_POSITIONS = 1 << 31
OF_SELF: dict[str, Any] = {  # fields that cross-attention lacks
    **dict.fromkeys(("positions", "position_scale")),
    **dict.fromkeys(("qk_norm", "qk_norm_wide", "qk_norm_after", "gate", "gate_per_head", "sink"), False),
}

# replacements of softmax attention: another mixer inside, or another part
MIXERS: dict[str, HasConfig] = {
    **{kind: inside for kind, inside in INSIDES.items() if "causal" in inside.forms},
    **{kind: part for kind, part in PARTS.items() if part.config.replaces_attention},
}
# MIXERS, and parts that no conversion produces
ALONE = {kind: part for kind, part in PARTS.items() if part.config.mixes and not issubclass(part.config, InsideConfig)}
LAYERS: dict[str, HasConfig] = {**MIXERS, **ALONE}


CROSSES: dict[str, HasConfig] = {
    **{kind: inside for kind, inside in INSIDES.items() if "cross" in inside.forms},
    "merged": Entry(resolve("t2r_export.lab.config.merged:MergeConfig"), None),
}


def mixer_from_dict(data: Mapping[str, Any]) -> MixerConfig | PartConfig:
    """A config of MIXERS from plain data with its `kind`.

    Raises:
        UserError: a missing, unknown or invalid value.
    """
    made: MixerConfig | PartConfig = of_table(MIXERS, data, "mixer")
    return made


@dataclass(frozen=True)
class Dense(Kind):
    """A dense feed-forward with the model's ffn_size and activation."""

    kind: ClassVar[str] = "dense"


@dataclass(frozen=True)
class NoFeedForward(Kind):
    """No feed-forward: the layer is its mixer, as in all-attention networks and LSTMs."""

    kind: ClassVar[str] = "none"


FEED_FORWARDS: dict[str, HasConfig] = {
    **{config.kind: Entry(config, None) for config in (Dense, NoFeedForward)},
    **{kind: part for kind, part in PARTS.items() if not part.config.mixes and part.config is not DenseConfig},
}


def _of(table: str, default: Any = MISSING) -> Any:
    """A field whose kinds are listed in a table of this module."""
    return limited(default, table=f"{__name__}:{table}")


@dataclass(frozen=True, kw_only=True)
class UniformEncoder:
    """An encoder of equal layers with the decoder's norms, activation and kind of positions."""

    layers: tuple[MixerConfig, ...]
    attention: HeadsConfig
    ffn_size: int = 1
    vocab_size: int | None = limited(None, bounds=(1, MAX_VOCABULARY))
    max_positions: int | None = limited(None, bounds=(1, MAX_POSITIONS))  # of learned positions

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class UniformConfig(DecoderConfig):
    """Shorthand for a ModelConfig. Fields without a comment are those of its stacks and parts."""

    NORMS: ClassVar[tuple[str, ...]] = ("layer", "rms", "none")
    NORM_POSITIONS: ClassVar[tuple[str, ...]] = ("pre", "post", "after", "both")

    # one mixer per layer, or an attention part with heads of its own
    layers: tuple[MixerConfig | PartConfig, ...] = _of("LAYERS")
    attention: HeadsConfig | None = None  # of all mixers inside attention
    ffn_size: int = 1
    norm: str = limited("layer", choices=NORMS)
    norm_eps: float = 1e-5
    # pre: x + f(norm(x)); post: norm(x + f(x)); after: x + norm(f(x)); both: x + norm'(f(norm(x)))
    norm_position: str = limited("pre", choices=NORM_POSITIONS)
    parallel: bool = False
    activation: str = "gelu_tanh"
    gated_ffn: bool = False
    position: str = limited("learned", choices=(*POSITIONS, "none"))  # rotary and ALiBi: for attention without its own
    max_positions: int | None = limited(None, bounds=(1, MAX_POSITIONS))  # of learned positions
    ffn_bias: bool = True
    # one per layer; empty: dense
    feed_forwards: tuple[Dense | NoFeedForward | PartConfig, ...] = _of("FEED_FORWARDS", ())
    residual: bool = True
    rezero: bool = False
    residual_gate: ResidualGateConfig | None = None
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    last_norm: bool = True
    rk2: bool = False  # also for the encoder's layers
    repeats: int = 1  # also for the encoder's layers
    depth_positions: bool = False
    encoder: UniformEncoder | None = None
    crosses: tuple[MixerConfig | JointConfig, ...] = _of("CROSSES", ())  # one per layer of a translator

    def __post_init__(self) -> None:
        check_values(self)
        self._check_counts()
        self._built  # noqa: B018  # validates the parts

    def with_attention(self, **changes: Any) -> UniformConfig:
        """A copy with changed heads, biases or positions in every layer."""
        return replace(self, attention=None if self.attention is None else replace(self.attention, **changes))

    def _check_counts(self) -> None:
        count = len(self.layers)
        for name, needed in (("feed_forwards", self.feed_forwards), ("crosses", self.encoder)):
            expected, received = count if needed else 0, len(getattr(self, name))
            need(received == expected, f"{expected} {name} for {count} layers", received, f"correct {name}")

    def build(self) -> ModelConfig:
        """The explicit config. It was validated on construction."""
        return self._built

    @cached_property
    def _built(self) -> ModelConfig:
        own = {one.name for one in fields(ModelConfig)} & {one.name for one in fields(self)}
        values: dict[str, Any] = {name: getattr(self, name) for name in own}
        values |= {"embedding_norm": self._norm(self.embedding_norm), "last_norm": self._norm(self.last_norm)}
        values["positions"] = self._embedded(self.max_positions)
        layers = tuple(map(self._layer, range(len(self.layers))))
        return ModelConfig(**{**values, "layers": layers, "encoder": self._encoder()})

    def _embedded(self, max_positions: int | None) -> PositionConfig | None:
        """Positions that are added to the embeddings."""
        if self.position == LearnedConfig.kind:
            return LearnedConfig(max_positions)  # type: ignore[arg-type]  # LearnedConfig refuses None
        without = f"no max_positions with positions of the kind {self.position}, which are unlimited"
        need(max_positions is None, without, max_positions, "leave max_positions out")
        return self._positions(embeds=True)

    def _positions(self, embeds: bool) -> PositionConfig | None:
        """The config of `position`, if that kind is (not) added to embeddings."""
        config = POSITIONS[self.position].config if self.position in POSITIONS else None
        return config() if config is not None and config.embeds == embeds else None

    def _norm(self, there: bool = True) -> NormConfig | None:
        return NormConfig(self.norm, self.norm_eps) if there and self.norm != "none" else None

    def _sublayer(self) -> dict[str, Any]:
        """Norms and residual of every part."""
        before, after = (self._norm(self.norm_position in (one, "both")) for one in ("pre", "after"))
        behind = self._norm(self.norm_position == "post")
        joined = {"residual": self.residual, "rezero": self.rezero, "residual_gate": self.residual_gate}
        return {"norm": before, "norm_after": after, "norm_sum": behind, **joined}

    def _layer(self, number: int) -> LayerConfig:
        mixer: Any = self.layers[number]
        cross: Any = self.crosses[number] if self.crosses else None
        after: Any = self.feed_forwards[number] if self.feed_forwards else Dense()
        parts = [self._own(mixer, number)]
        if isinstance(cross, JointConfig):
            parts = [self._merged(mixer, cross, after, number)]
        elif cross is not None:
            parts.append(self._attention(CrossConfig, cross, number, **OF_SELF))
        feed_forward = self._feed_forward(after, self.ffn_size)
        return self._parts(*parts, feed_forward)

    def _parts(self, first: PartConfig, *rest: PartConfig | None) -> LayerConfig:
        """A layer of the parts that are not None."""
        others = [replace(part, beside=self.parallel) for part in rest if part is not None]
        return LayerConfig(parts=(first, *others), rk2=self.rk2)

    def _own(self, mixer: Any, number: int) -> PartConfig:
        if isinstance(mixer, MixerConfig):
            return self._attention(AttentionConfig, mixer, number)
        need(isinstance(mixer, PartConfig), f"a mixer as layer {number}", repr(mixer), "correct layers")
        return mixed(PartConfig(**self._sublayer()), mixer)

    def _attention(self, kind: Any, inside: MixerConfig, number: int, **changes: Any) -> PartConfig:
        expected = f"an attention config for layer {number}, a {inside.kind} layer"
        need(self.attention is not None, expected, "none", "add attention to the config")
        assert self.attention is not None
        part: PartConfig = kind(inside=inside, **{**self._heads(self.attention), **changes}, **self._sublayer())
        return part

    def _heads(self, heads: HeadsConfig) -> dict[str, Any]:
        """Fields of attention parts, with the model's defaults."""
        values = {one.name: getattr(heads, one.name) for one in fields(HeadsConfig)}
        return values | {"positions": heads.positions or self._positions(embeds=False), "norm_eps": self.norm_eps}

    def _merged(self, mixer: Any, merge: JointConfig, after: Any, number: int) -> PartConfig:
        own = self._own(mixer, number)
        need(isinstance(own, AttentionConfig), "attention in merged layers", own.kind, "choose another mixer")
        assert isinstance(own, AttentionConfig)
        inside: dict[str, Any] = {}
        if merge.feed_forward:
            plain = not self.gated_ffn and isinstance(after, NoFeedForward)
            what = "merged layers with an ungated feed-forward inside and no other"
            need(plain, what, "another", "set their feed_forwards to none")
            inside = {"hidden": self.ffn_size, "hidden_bias": self.ffn_bias, "activation": self.activation}
        return merge.part(own, **inside)

    def _feed_forward(self, after: Any, hidden: int) -> PartConfig | None:
        if isinstance(after, NoFeedForward):
            return None
        if isinstance(after, Dense):
            after = DenseConfig(size=hidden, activation=self.activation, gated=self.gated_ffn, bias=self.ffn_bias)
        need(isinstance(after, PartConfig), "a feed-forward", repr(after), "correct feed_forwards")
        return mixed(PartConfig(**self._sublayer()), after)

    def _encoder(self) -> EncoderConfig | None:
        if self.encoder is None:
            return None
        heads = self._heads(self.encoder.attention)
        after = self._feed_forward(Dense(), self.encoder.ffn_size)
        assert after is not None
        layers = tuple(
            self._parts(EncoderAttentionConfig(inside=inside, **heads, **self._sublayer()), after)
            for inside in self.encoder.layers
        )
        return EncoderConfig(
            layers=layers,
            vocab_size=self.encoder.vocab_size,
            positions=self._embedded(self.encoder.max_positions),
            embedding_scale=self.embedding_scale,
            embedding_norm=self._norm(self.embedding_norm),
            last_norm=self._norm(self.last_norm),
            repeats=self.repeats,
            depth_positions=self.depth_positions,
        )

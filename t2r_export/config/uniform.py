"""Models whose layers are alike but for their mixers, in few words: what recipes, importers and tests write.

Every layer is attention, attention to the source where there is an encoder, and a feed-forward, with equal norms.
`build` makes the ModelConfig, in which nothing is implied. Imports without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.layer import LayerConfig, mixed
from t2r_export.config.mixers import INSIDES, MixerConfig, SharedConfig, SoftmaxConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.model import EncoderConfig, ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.options import option
from t2r_export.config.parts import (
    PARTS,
    AttentionConfig,
    AverageConfig,
    CrossConfig,
    DenseConfig,
    EncoderAttentionConfig,
    GatedDeltaConfig,
    GRUConfig,
    LSTMConfig,
    Mamba2Config,
    MergedConfig,
    PartConfig,
    ProductKeyConfig,
    ShortConvConfig,
)
from t2r_export.config.plain import of_table
from t2r_export.config.positions import POSITIONS, LearnedConfig, PositionConfig
from t2r_export.config.tagged import Entry, HasConfig, Kind
from t2r_export.config.validation import choice, flag, need, size

# what softmax attention can become: another mixer inside, or another part in its place
MIXERS: dict[str, HasConfig] = {
    **{kind: inside for kind, inside in INSIDES.items() if "causal" in inside.forms},
    **{config.kind: PARTS[config.kind] for config in (LSTMConfig, GRUConfig, AverageConfig)},
}
# what a layer can mix by: those, and parts that a model is trained with from the start
TRAINED = (GatedDeltaConfig, Mamba2Config, ShortConvConfig)
LAYERS: dict[str, HasConfig] = {**MIXERS, **{config.kind: PARTS[config.kind] for config in TRAINED}}


@dataclass(frozen=True)
class MergeConfig(Kind):
    """No part of its own for the source: the layer's own attention reads it beside the prefix (`MergedConfig`)."""

    kind: ClassVar[str] = "merged"

    shared: bool = option("Project the source's keys and values as the prefix's, without weights of their own.", False)
    feed_forward: bool = option("Take the feed-forward into the attention's values and output (CAN).", False)

    def __post_init__(self) -> None:
        flag("shared", self.shared)
        flag("feed_forward", self.feed_forward)


CROSSES: dict[str, HasConfig] = {
    config.kind: Entry(config, None) for config in (SoftmaxConfig, LinearConfig, SharedConfig, MergeConfig)
}


def mixer_from_dict(data: Mapping[str, Any]) -> MixerConfig | PartConfig:
    """What softmax attention can become, from plain data with its `kind`.

    Raises:
        UserError: a missing, unknown or impossible value.
    """
    made: MixerConfig | PartConfig = of_table(MIXERS, data, "mixer")
    return made


@dataclass(frozen=True)
class Dense(Kind):
    """Dense, of the model's ffn_size and activation."""

    kind: ClassVar[str] = "dense"


@dataclass(frozen=True)
class NoFeedForward(Kind):
    """No feed-forward and no norm before it: a layer is its mixer, as in all-attention networks and LSTMs."""

    kind: ClassVar[str] = "none"


FEED_FORWARDS: dict[str, HasConfig] = {
    config.kind: Entry(config, None) for config in (Dense, NoFeedForward, ProductKeyConfig)
}


def _of(table: str, default: Any = MISSING) -> Any:
    """A field whose configs a table of this module lists."""
    return field(default=default, metadata={"table": f"{__name__}:{table}"})


@dataclass(frozen=True, kw_only=True)
class UniformEncoder:
    """An encoder of equal layers; norms, activation and kind of positions are the decoder's."""

    layers: tuple[MixerConfig, ...]
    attention: HeadsConfig
    ffn_size: int = 1
    vocab_size: int | None = None
    max_positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class UniformConfig:
    """A ModelConfig in few words. Fields that are not explained here are ModelConfig's own."""

    vocab_size: int
    width: int
    layers: tuple[MixerConfig | PartConfig, ...] = _of("LAYERS")  # one mixer a layer
    attention: HeadsConfig | None = None  # of the layers that have attention; None where none has
    attentions: tuple[HeadsConfig, ...] = ()  # one a layer, where they differ
    ffn_size: int = 1
    norm: str = "layer"  # layer, rms or none
    norm_eps: float = 1e-5
    norm_position: str = "pre"  # pre: x + f(norm(x)); post: norm(x + f(x)); both: x + norm'(f(norm(x)))
    parallel: bool = False
    activation: str = "gelu_tanh"
    gated_ffn: bool = False
    position: str = "learned"  # a kind of position, or none; of attention: where that does not say its own
    max_positions: int | None = None  # of learned positions
    tied_head: bool = True
    head_bias: bool = False
    ffn_bias: bool = True
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    # one a layer; empty: dense in all
    feed_forwards: tuple[Dense | NoFeedForward | ProductKeyConfig, ...] = _of("FEED_FORWARDS", ())
    residual: bool = True
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    embedding_norm: bool = False
    last_norm: bool = True
    encoder: UniformEncoder | None = None
    crosses: tuple[MixerConfig | MergeConfig, ...] = _of("CROSSES", ())  # how each layer looks at the source
    start_tokens: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    generation: GenerationOptions | None = None

    NORMS: ClassVar[tuple[str, ...]] = ("layer", "rms", "none")
    NORM_POSITIONS: ClassVar[tuple[str, ...]] = ("pre", "post", "both")

    def __post_init__(self) -> None:
        self.build()  # which checks everything

    def with_attention(self, **changes: Any) -> UniformConfig:
        """This model with other heads, biases or rotations in every layer."""
        one = None if self.attention is None else replace(self.attention, **changes)
        return replace(self, attention=one, attentions=tuple(replace(heads, **changes) for heads in self.attentions))

    def build(self) -> ModelConfig:
        """The model.

        Raises:
            UserError: what the configs of its parts refuse, or lists of another length than `layers`.
        """
        choice("norm", self.norm, self.NORMS)
        choice("norm_position", self.norm_position, self.NORM_POSITIONS)
        for name in ("embedding_norm", "last_norm"):
            flag(name, getattr(self, name))
        choice("position", self.position, (*POSITIONS, "none"))
        size("width", self.width)
        size("ffn_size", self.ffn_size)
        count = len(self.layers)
        named = {"feed_forwards": "a feed-forward", "attentions": "an attention"}
        for name, what in named.items():
            fine = len(getattr(self, name)) in (0, count)
            need(
                fine,
                f"{what} for each of the {count} layers, or none named",
                len(getattr(self, name)),
                f"correct {name}",
            )
        looking = 0 if self.encoder is None else count
        expected = f"{looking} layers that look at a source, one per layer where there is an encoder"
        need(len(self.crosses) == looking, expected, len(self.crosses), "correct crosses")
        own = {one.name for one in fields(ModelConfig)} & {one.name for one in fields(self)}
        values: dict[str, Any] = {name: getattr(self, name) for name in own}
        values |= {"embedding_norm": self._norm(self.embedding_norm), "last_norm": self._norm(self.last_norm)}
        values["positions"] = self._embedded(self.max_positions)
        layers = tuple(map(self._layer, range(count)))
        return ModelConfig(**{**values, "layers": layers, "encoder": self._encoder()})

    def _embedded(self, max_positions: int | None) -> PositionConfig | None:
        """What is added to the embeddings of a stack."""
        if self.position == LearnedConfig.kind:
            return LearnedConfig(max_positions)  # type: ignore[arg-type]  # which refuses None
        without = f"no max_positions, since positions of the kind {self.position} do not end"
        need(max_positions is None, without, max_positions, "leave max_positions out")
        return self._positions(embeds=True)

    def _positions(self, embeds: bool) -> PositionConfig | None:
        """The kind of `position`, where its place is this one."""
        config = POSITIONS[self.position].config if self.position in POSITIONS else None
        return config() if config is not None and config.embeds == embeds else None

    def _norm(self, there: bool = True) -> NormConfig | None:
        return NormConfig(self.norm, self.norm_eps) if there and self.norm != "none" else None

    def _sublayer(self) -> dict[str, Any]:
        """What all parts have: norms and residual."""
        before = self._norm(self.norm_position != "post")
        after, behind = self._norm(self.norm_position == "both"), self._norm(self.norm_position == "post")
        return {"norm": before, "norm_after": after, "norm_sum": behind, "residual": self.residual}

    def _layer(self, number: int) -> LayerConfig:
        mixer: Any = self.layers[number]
        cross: Any = self.crosses[number] if self.crosses else None
        after: Any = self.feed_forwards[number] if self.feed_forwards else Dense()
        parts = [self._own(mixer, number)]
        if isinstance(cross, MergeConfig):
            parts = [self._merged(mixer, cross, after, number)]
        elif cross is not None:
            parts.append(self._attention(CrossConfig, cross, number, positions=None, qk_norm=False, gate=False))
        feed_forward = self._feed_forward(after, self.ffn_size)
        return self._parts(*parts, feed_forward)

    def _parts(self, first: PartConfig, *rest: PartConfig | None) -> LayerConfig:
        """A layer of those parts that there are."""
        others = [replace(part, beside=self.parallel) for part in rest if part is not None]
        return LayerConfig(parts=(first, *others))

    def _own(self, mixer: Any, number: int) -> PartConfig:
        if isinstance(mixer, MixerConfig):
            return self._attention(AttentionConfig, mixer, number)
        need(isinstance(mixer, PartConfig), f"a mixer as layer {number}", repr(mixer), "correct layers")
        return mixed(PartConfig(**self._sublayer()), mixer)

    def _attention(self, kind: Any, inside: MixerConfig, number: int, **changes: Any) -> PartConfig:
        heads: Any = self.attentions[number] if self.attentions else self.attention
        expected = f"an attention config for layer {number}, a {inside.kind} layer"
        need(heads is not None, expected, "none", "add attention to the config")
        part: PartConfig = kind(inside=inside, **{**self._heads(heads), **changes}, **self._sublayer())
        return part

    def _heads(self, heads: HeadsConfig) -> dict[str, Any]:
        """Fields of attention, with what all attention of the model has."""
        values = {one.name: getattr(heads, one.name) for one in fields(HeadsConfig)}
        return values | {"positions": heads.positions or self._positions(embeds=False), "norm_eps": self.norm_eps}

    def _merged(self, mixer: Any, merge: MergeConfig, after: Any, number: int) -> PartConfig:
        own = self._own(mixer, number)
        need(isinstance(own, AttentionConfig), "attention in merged layers", own.kind, "choose another mixer")
        inside = {}
        if merge.feed_forward:
            plain = not self.gated_ffn and isinstance(after, NoFeedForward)
            what = "merged layers with the feed-forward inside to have no other, and no gate in it"
            need(plain, what, "one", "give those layers the feed-forward none")
            inside = {"hidden": self.ffn_size, "hidden_bias": self.ffn_bias, "activation": self.activation}
        return self._attention(MergedConfig, mixer, number, shared=merge.shared, **inside)

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
        size("ffn_size", self.encoder.ffn_size)
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
        )

"""What a model is, as plain data: frozen, validated on construction, to JSON and back unchanged.

Imports without torch, so that commands can print help and read metadata at once. Letters (B, T, H, G, K, V, D, L) are
those of the README. The configs of the parts stand beside this file: attention, mixers, feed_forward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.attention import AttentionConfig, check_rotated
from t2r_export.config.encoder import EncoderConfig, check_hidden, check_merged, check_source_mixers, mixers_from
from t2r_export.config.feed_forward import DENSE, FeedForwardConfig, feed_forward_from_dict
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.mixers import CROSSES, MIXERS, MergedConfig, MixerConfig
from t2r_export.config.mixers.shared import check_borrowed
from t2r_export.config.validation import MAX_LAYERS, MAX_VOCABULARY, choice, fields, flag, need, number, size


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder: blocks of a token mixer and a feed-forward each. With an encoder it is a translator, whose blocks look
    at the source between the two.

    With recurrent mixers, no norm, no residual and no feed-forward it is a plain LSTM or GRU language model.
    """

    vocab_size: int
    width: int  # D
    layers: tuple[MixerConfig, ...]  # one mixer per layer
    attention: AttentionConfig | None = None  # of the layers that have attention; None where none has
    attentions: tuple[AttentionConfig, ...] = ()  # one per layer, where they differ; empty: `attention` in all
    ffn_size: int = 1  # of dense feed-forwards
    norm: str = "layer"
    norm_eps: float = 1e-5
    norm_position: str = "pre"  # pre: x + f(norm(x)); post: norm(x + f(x)); both: x + norm'(f(norm(x)))
    parallel: bool = False  # mixer and feed-forward see the same x, and both are added to it
    activation: str = "gelu_tanh"
    gated_ffn: bool = False  # SwiGLU form: down(act(gate(x)) * up(x))
    position: str = "learned"
    max_positions: int | None = None  # rows of the learned table; None where nothing ends
    tied_head: bool = True
    head_bias: bool = False
    ffn_bias: bool = True
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    feed_forwards: tuple[FeedForwardConfig, ...] = ()  # one per layer; empty: dense in all
    residual: bool = True  # a block adds to its input; false: its output takes the input's place
    embedding_scale: float = 1.0  # of the tokens' embeddings, before positions are added
    logit_scale: float = 1.0
    logit_softcap: float | None = None  # logits become softcap · tanh(logit / softcap), behind the scale
    embedding_norm: bool = False  # a norm behind the embeddings and what their position adds
    last_norm: bool = True  # a norm in front of the head
    encoder: EncoderConfig | None = None
    crosses: tuple[MixerConfig, ...] = ()  # how each layer looks at the source: one per layer where there is an encoder
    start_tokens: tuple[int, ...] = ()  # read before the first token of a translation is chosen
    banned_tokens: tuple[int, ...] = ()  # never chosen in a translation
    generation: GenerationOptions | None = None  # how it is meant to generate; None: nothing is said

    NORMS: ClassVar[tuple[str, ...]] = ("layer", "rms", "none")
    NORM_POSITIONS: ClassVar[tuple[str, ...]] = ("pre", "post", "both")
    ACTIVATIONS: ClassVar[tuple[str, ...]] = (
        *("relu", "gelu", "gelu_tanh", "silu"),
        *("quick_gelu", "relu2", "mish", "gelu_10"),
    )
    # what is added to the embeddings: a table, sines, or nothing; a rotation of q and k stands in `attention`
    POSITION_KINDS: ClassVar[tuple[str, ...]] = ("learned", "sinusoidal", "none")

    def __post_init__(self) -> None:
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        for name in ("width", "ffn_size"):
            size(name, getattr(self, name))
        count = len(self.layers)
        need(1 <= count <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", count, "correct the number of layers")
        choice("norm", self.norm, self.NORMS)
        choice("norm_position", self.norm_position, self.NORM_POSITIONS)
        choice("activation", self.activation, self.ACTIVATIONS)
        choice("position", self.position, self.POSITION_KINDS)
        for name in ("norm_eps", "embedding_scale", "logit_scale"):
            number(name, getattr(self, name))
        if self.logit_softcap is not None:
            number("logit_softcap", self.logit_softcap)
        for name in ("gated_ffn", "tied_head", "head_bias", "ffn_bias", "residual", "parallel", "embedding_norm"):
            flag(name, getattr(self, name))
        flag("last_norm", self.last_norm)
        need(
            not self.parallel or (self.residual and self.norm_position == "pre"),
            "a residual and norm_position 'pre' where mixer and feed-forward are parallel",
            f"residual={self.residual}, norm_position={self.norm_position!r}",
            "correct the config",
        )
        self._check_positions()
        self._check_tokens()
        for name, what in (("feed_forwards", "a feed-forward"), ("attentions", "an attention")):
            need(
                len(getattr(self, name)) in (0, count),
                f"{what} for each of the {count} layers, or none named",
                len(getattr(self, name)),
                f"correct {name}",
            )
        for layer, mixer in enumerate(self.layers):
            attention = self.attention_of(layer)
            need(
                attention is not None or not mixer.attends,
                f"an attention config for layer {layer}, a {mixer.kind} layer",
                "none",
                "add attention to the config",
            )
            mixer.check(attention)
        self._check_encoder()
        self._check_borrowed()
        if self.generation is not None:
            self.generation.check(translates=self.encoder is not None)

    def __deepcopy__(self, _: dict[int, Any]) -> ModelConfig:
        """Itself, which nothing changes: every mixer has it, and a copy of one would copy the configs of all layers."""
        return self

    def feed_forward(self, layer: int) -> FeedForwardConfig:
        """What a layer's feed-forward is."""
        return self.feed_forwards[layer] if self.feed_forwards else DENSE

    def attention_of(self, layer: int) -> AttentionConfig | None:
        """What a layer's attention is, where it has any."""
        if not self.layers[layer].attends:
            return None
        return self.attentions[layer] if self.attentions else self.attention

    def mixers(self, layer: int) -> tuple[MixerConfig, ...]:
        """A layer's mixers: its own, and how it looks at the source where there is one."""
        return (self.layers[layer], *self.crosses[layer : layer + 1])

    def cross_attention(self, layer: int) -> AttentionConfig | None:
        """The attention of a layer to the source: as its own, but that the source stands in no place of the text."""
        attention = self.attentions[layer] if self.attentions else self.attention
        return None if attention is None else dataclasses.replace(attention, rotary=None, qk_norm=False)

    def of_encoder(self) -> ModelConfig:
        """The encoder's stack with all that it has from the decoder."""
        encoder = self.encoder
        assert encoder is not None
        changes: dict[str, Any] = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)}
        changes |= dict.fromkeys(("crosses", "attentions", "feed_forwards", "eos_tokens", "start_tokens"), ())
        changes |= {"encoder": None, "bos_token": None, "banned_tokens": (), "generation": None}
        return dataclasses.replace(self, **{**changes, "vocab_size": encoder.vocab_size or self.vocab_size})

    @property
    def rotates(self) -> bool:
        """Whether q and k of any layer are rotated by their position."""
        attentions = map(self.attention_of, range(len(self.layers)))
        return any(a is not None and a.rotary is not None for a in attentions)

    @property
    def positions_summary(self) -> str:
        """The kinds of positions, for a person: `learned`, `sinusoidal`, `rotary`, several of them, or `none`."""
        kinds = [self.position] * (self.position != "none") + ["rotary"] * self.rotates
        return " and ".join(kinds) or "none"

    def with_attention(self, **changes: Any) -> ModelConfig:
        """This model with other heads, biases or rotations in every layer."""
        one = None if self.attention is None else dataclasses.replace(self.attention, **changes)
        several = tuple(dataclasses.replace(attention, **changes) for attention in self.attentions)
        return dataclasses.replace(self, attention=one, attentions=several)

    def _check_positions(self) -> None:
        if self.position == "learned":
            size("max_positions", self.max_positions, 1 << 31)
        else:
            need(
                self.max_positions is None,
                f"no max_positions, since positions of the kind {self.position} do not end",
                self.max_positions,
                "leave max_positions out",
            )
        if self.position == "sinusoidal":
            check_rotated("width", self.width, "sinusoidal")

    def _check_encoder(self) -> None:
        count = 0 if self.encoder is None else len(self.layers)
        need(
            len(self.crosses) == count,
            f"{count} layers that look at a source, one per layer where there is an encoder",
            len(self.crosses),
            "correct crosses",
        )
        for layer, mixer in enumerate(self.crosses):
            if isinstance(mixer, MergedConfig):
                check_merged(self.layers[layer], self.attention_of(layer))
                if mixer.feed_forward:
                    plain = not self.gated_ffn and self.feed_forward(layer).kind == "none"
                    check_hidden(self.layers[layer], self.attention_of(layer), self.ffn_size, plain)
            else:
                check_source_mixers([mixer], CROSSES, self.cross_attention(layer), "cross")
        starts = len(self.start_tokens)
        need(
            (starts > 0) == (self.encoder is not None) and (self.encoder is not None or not self.banned_tokens),
            "start_tokens where there is an encoder, and neither these nor banned_tokens where there is none",
            f"{starts} start_tokens, {len(self.banned_tokens)} banned_tokens",
            "correct the config",
        )
        if self.encoder is not None:
            self.of_encoder()  # which checks itself

    def _check_borrowed(self) -> None:
        layers = range(len(self.layers))
        own = [m[-1] if isinstance(m[-1], MergedConfig) else m[0] for m in map(self.mixers, layers)]
        check_borrowed(own, [self.attention_of(layer) for layer in layers], "layer")
        check_borrowed(self.crosses, [self.cross_attention(layer) for layer in layers], "cross layer")

    def _check_tokens(self) -> None:
        special = (*self.eos_tokens, *([] if self.bos_token is None else [self.bos_token]))
        special += (*self.start_tokens, *self.banned_tokens)
        for token in special:
            need(
                isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self.vocab_size,
                f"special tokens from 0 to {self.vocab_size - 1}",
                token,
                "correct the special tokens",
            )

    def describe_layers(self) -> list[dict[str, Any]]:
        """Each layer for a person or a graph's metadata: its mixer, its attention or None, its feed-forward."""
        return [
            {
                "mixer": mixer.to_dict(),
                "attention": None if (attention := self.attention_of(layer)) is None else attention.to_dict(),
                "feed_forward": self.feed_forward(layer).to_dict(),
                **({"cross": self.crosses[layer].to_dict()} if self.crosses else {}),
            }
            for layer, mixer in enumerate(self.layers)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or for a checkpoint; `from_dict` gives an equal config back."""
        data = dataclasses.asdict(self)
        data["layers"] = [mixer.to_dict() for mixer in self.layers]
        data["crosses"] = [mixer.to_dict() for mixer in self.crosses]
        data["encoder"] = None if self.encoder is None else self.encoder.to_dict()
        for name in ("eos_tokens", "start_tokens", "banned_tokens"):
            data[name] = list(data[name])
        if self.encoder is None:  # as before there were any: the file of a decoder alone keeps its hash
            usual: dict[str, Any] = {"encoder": None, "crosses": [], "start_tokens": [], "banned_tokens": []}
            usual |= {"embedding_norm": False, "last_norm": True}
            data = {name: value for name, value in data.items() if name not in usual or value != usual[name]}
        if self.generation is None:  # as before there was any
            del data["generation"]
        else:
            data["generation"] = self.generation.to_dict()
        data["feed_forwards"] = [feed_forward.to_dict() for feed_forward in self.feed_forwards]
        data["attentions"] = list(data["attentions"])
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        values = fields(cls, data, "the model's config")
        values["layers"] = mixers_from(values.get("layers", ()), MIXERS, "layers")
        values["crosses"] = mixers_from(values.get("crosses", ()), CROSSES, "crosses")
        parsers = {"feed_forwards": feed_forward_from_dict, "attentions": AttentionConfig.from_dict}
        for name, read in parsers.items():
            items = values.get(name, ())
            need(
                isinstance(items, list | tuple) and len(items) <= MAX_LAYERS,
                f"{name} to be a list of at most {MAX_LAYERS}",
                type(items).__name__,
                "correct the config",
            )
            values[name] = tuple(read(item) for item in items)
        if values.get("attention") is not None:
            values["attention"] = AttentionConfig.from_dict(values["attention"])
        if values.get("encoder") is not None:
            values["encoder"] = EncoderConfig.from_dict(values["encoder"])
        if values.get("generation") is not None:
            values["generation"] = GenerationOptions.from_dict(values["generation"])
        for name in ("eos_tokens", "start_tokens", "banned_tokens"):
            tokens = values.get(name, ())
            need(isinstance(tokens, list | tuple), f"{name} to be a list", type(tokens).__name__, f"correct {name}")
            values[name] = tuple(tokens)
        return cls(**values)

"""Model configs: frozen, validated on construction, with a lossless JSON form.

Imports without torch, so that commands print help and read metadata quickly. Shape letters (B, T, H, G, K, V, D, L) are
those of the README. `config.uniform` is a shorthand for models with equal layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.layer import LayerConfig, check_borrowed, mapped
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.options import check_values, limited
from t2r_export.config.parts import PartConfig
from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.positions import PositionConfig
from t2r_export.config.validation import MAX_LAYERS, MAX_VOCABULARY, need

VERSION = 5  # of configs and of the names and layouts of weights, in files


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A stack of layers with input positions and a last norm: an encoder or a decoder."""

    layers: tuple[LayerConfig, ...]
    positions: PositionConfig | None = None  # added to the embeddings
    embedding_scale: float = 1.0  # of token embeddings, before positions are added
    embedding_norm: NormConfig | None = None  # after the positions
    last_norm: NormConfig | None = None  # after the last layer
    repeats: int = 1  # number of passes through the layers, with the same weights (Universal Transformer)
    depth_positions: bool = False  # each pass adds the positions again, and sinusoids of its number (`Stack.entered`)

    def __post_init__(self) -> None:
        check_values(self)
        count = len(self.layers)
        need(1 <= count <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", count, "correct the number of layers")
        most = MAX_LAYERS // count
        need(self.repeats <= most, f"{count} layers to repeat at most {most} times", self.repeats, "correct repeats")
        other = next((layer for layer in self.layers if not isinstance(layer, LayerConfig)), None)
        need(other is None, "layers of type LayerConfig", type(other).__name__, "correct the config")
        embeds = self.positions is None or (isinstance(self.positions, PositionConfig) and self.positions.embeds)
        need(embeds, "positions that are added to embeddings, or none", repr(self.positions), "correct the positions")
        added = self.positions is not None or not self.depth_positions
        need(added, "positions that are added, for depth_positions", "none", "set positions, or leave it out")

    def __deepcopy__(self, _: dict[int, Any]) -> StackConfig:
        """Return self: configs are immutable."""
        return self

    def check_width(self, width: int) -> None:
        """Raise UserError if the positions do not support this width."""
        if self.positions is not None:
            self.positions.check(width)

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens: the size of a table, or where frequencies change; None: unlimited."""
        ends = [one.end for one in (self.positions, *(heads.positions for heads in self.heads)) if one is not None]
        return min((end for end in ends if end is not None), default=None)

    @property
    def heads(self) -> list[HeadsConfig]:
        """The head configs of all attention parts."""
        return [part for layer in self.layers for part in layer.parts if isinstance(part, HeadsConfig)]

    @property
    def rotates(self) -> bool:
        """Whether any layer has rotary positions."""
        return any(heads.positions is not None and heads.positions.rotates for heads in self.heads)

    @property
    def positions_summary(self) -> str:
        """The kinds of positions joined by `and`, or `none`."""
        found = [self.positions, *(heads.positions for heads in self.heads)]
        return " and ".join(dict.fromkeys(one.kind for one in found if one is not None)) or "none"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """A bidirectional stack with the decoder's width."""

    vocab_size: int | None = limited(None, bounds=(1, MAX_VOCABULARY))  # None: shares the decoder's embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = [part for layer in self.layers for part in layer.parts]
        wrong = next((part for part in parts if part.reads_past or part.mixes and part.group != "encoder"), None)
        received = "" if wrong is None else f"a {wrong.kind} part"
        need(wrong is None, "bidirectional parts in the encoder", received, "correct the encoder")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What a decoder has besides its layers, norms and positions."""

    vocab_size: int = limited(bounds=(1, MAX_VOCABULARY))  # number of outputs
    width: int  # D
    input_size: int | None = None  # size of the input vectors; None: the input is token ids
    tied_head: bool = True
    head_bias: bool = False
    bos_token: int | None = limited(None, bounds=(0, MAX_VOCABULARY))
    eos_tokens: tuple[int, ...] = ()
    logit_scale: float = 1.0
    logit_softcap: float | None = None  # scaled logits become softcap · tanh(logit / softcap)
    encoder: Any = None
    start_tokens: tuple[int, ...] = ()  # prefix of every translation
    banned_tokens: tuple[int, ...] = ()  # never generated in a translation
    generation: GenerationOptions | None = None  # default generation options


@dataclass(frozen=True, kw_only=True)
class ModelConfig(DecoderConfig, StackConfig):
    """A decoder; with an encoder, a translator whose layers read a source."""

    encoder: EncoderConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_width(self.width)
        self._check_tokens()
        self._check_source()
        self._check_vectors()
        check_borrowed(self.layers)
        if self.generation is not None:
            self.generation.check(translates=self.encoder is not None)

    def _check_source(self) -> None:
        translates = self.encoder is not None
        for number, layer in enumerate(self.layers):
            readers = sum(part.reads_source for part in layer.parts)
            need(
                readers == translates and not any(part.group == "encoder" for part in layer.parts),
                f"{int(translates)} source-reading parts and no encoder parts in layer {number}",
                readers,
                "give each layer of a translator one such part, and those of a decoder none",
            )
        starts = len(self.start_tokens)
        need(
            (starts > 0) == translates and (translates or not self.banned_tokens),
            "start_tokens for a translator, and neither start_tokens nor banned_tokens for a decoder",
            f"{starts} start_tokens, {len(self.banned_tokens)} banned_tokens",
            "correct the config",
        )
        if self.encoder is not None:
            self.encoder.check_width(self.width)

    def _check_vectors(self) -> None:
        if self.input_size is not None:
            need(not self.tied_head, "a head of its own for a model that reads vectors", "tied_head", "set it to false")
            need(self.encoder is None, "a decoder that reads vectors", "a translator", "leave out input_size")

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

    @property
    def source_vocab_size(self) -> int:
        """Vocabulary size of a translator's sources."""
        own = None if self.encoder is None else self.encoder.vocab_size
        return self.vocab_size if own is None else own

    def with_mixers(self, *mixers: MixerConfig | PartConfig, group: str = "layers") -> ModelConfig:
        """A copy with other mixers, one per layer; see `LayerConfig.with_mixer`."""
        assert len(mixers) == len(self.layers)
        return dataclasses.replace(self, layers=mapped(self.layers, lambda n, old: old.with_mixer(mixers[n], group)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON and checkpoints; `from_dict` restores the config."""
        data: dict[str, Any] = to_plain(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`. Raises UserError for missing, unknown or invalid values."""
        return from_plain(cls, data, "model")

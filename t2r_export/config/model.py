"""What a model is, as plain data: frozen, validated on construction, to JSON and back unchanged.

Imports without torch, so that commands can print help and read metadata at once. Letters (B, T, H, G, K, V, D, L) are
those of the README. A layer is one value (`config.layer`), made of parts (`config.parts`); `config.uniform` writes a
model of equal layers in few words.
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
from t2r_export.config.parts import PartConfig
from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.positions import PositionConfig
from t2r_export.config.validation import MAX_LAYERS, MAX_VOCABULARY, flag, need, number, size


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Layers, what their first sees, and the norm behind their last: an encoder, or the stack of a decoder."""

    layers: tuple[LayerConfig, ...]
    positions: PositionConfig | None = None  # what is added to the embeddings
    embedding_scale: float = 1.0  # of the tokens' embeddings, before positions are added
    embedding_norm: NormConfig | None = None  # behind the embeddings and what their position adds
    last_norm: NormConfig | None = None  # behind the last layer

    def __post_init__(self) -> None:
        count = len(self.layers)
        need(1 <= count <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", count, "correct the number of layers")
        known = all(isinstance(layer, LayerConfig) for layer in self.layers)
        need(known, "layers of parts", "something else", "correct the config")
        number("embedding_scale", self.embedding_scale)
        embeds = self.positions is None or (isinstance(self.positions, PositionConfig) and self.positions.embeds)
        need(embeds, "positions that are added to embeddings, or none", repr(self.positions), "correct the positions")

    def __deepcopy__(self, _: dict[int, Any]) -> StackConfig:
        """Itself, which nothing changes."""
        return self

    def check_width(self, width: int) -> None:
        """Refuse with a UserError a width that the positions cannot have."""
        if self.positions is not None:
            self.positions.check(width)

    @property
    def max_positions(self) -> int | None:
        """How many positions the embeddings have; None where nothing ends."""
        return None if self.positions is None else self.positions.end

    @property
    def heads(self) -> list[HeadsConfig]:
        """The heads of every part that has any."""
        return [part for layer in self.layers for part in layer.parts if isinstance(part, HeadsConfig)]

    @property
    def rotates(self) -> bool:
        """Whether q and k of any layer are rotated by their position."""
        return any(heads.positions is not None and heads.positions.rotates for heads in self.heads)

    @property
    def positions_summary(self) -> str:
        """The kinds of positions, for a person: one, several with `and` between them, or `none`."""
        found = [self.positions, *(heads.positions for heads in self.heads)]
        return " and ".join(dict.fromkeys(one.kind for one in found if one is not None)) or "none"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """A stack that sees a whole source at once; its width is the decoder's."""

    vocab_size: int | None = None  # of a table of its own; None: the decoder's is for both

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size is not None:
            size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        parts = [part for layer in self.layers for part in layer.parts]
        wrong = next((part for part in parts if part.mixes and part.group != "encoder"), None)
        received = "" if wrong is None else f"a {wrong.kind} part"
        need(wrong is None, "parts of an encoder's layers that see a whole source", received, "correct the encoder")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(StackConfig):
    """A decoder. With an encoder it is a translator, some of whose parts read a source."""

    vocab_size: int
    width: int  # D
    tied_head: bool = True
    head_bias: bool = False
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    logit_scale: float = 1.0
    logit_softcap: float | None = None  # logits become softcap · tanh(logit / softcap), behind the scale
    encoder: EncoderConfig | None = None
    start_tokens: tuple[int, ...] = ()  # read before the first token of a translation is chosen
    banned_tokens: tuple[int, ...] = ()  # never chosen in a translation
    generation: GenerationOptions | None = None  # how it is meant to generate; None: nothing is said

    def __post_init__(self) -> None:
        super().__post_init__()
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        size("width", self.width)
        number("logit_scale", self.logit_scale)
        if self.logit_softcap is not None:
            number("logit_softcap", self.logit_softcap)
        for name in ("tied_head", "head_bias"):
            flag(name, getattr(self, name))
        self.check_width(self.width)
        self._check_tokens()
        self._check_source()
        check_borrowed(self.layers)
        if self.generation is not None:
            self.generation.check(translates=self.encoder is not None)

    def _check_source(self) -> None:
        translates = self.encoder is not None
        for number_, layer in enumerate(self.layers):
            readers = sum(part.reads_source for part in layer.parts)
            need(
                readers == translates and not any(part.group == "encoder" for part in layer.parts),
                f"{int(translates)} parts that read a source in layer {number_}, and none of an encoder's",
                readers,
                "give each layer of a translator one, and a decoder alone none",
            )
        starts = len(self.start_tokens)
        need(
            (starts > 0) == translates and (translates or not self.banned_tokens),
            "start_tokens where there is an encoder, and neither these nor banned_tokens where there is none",
            f"{starts} start_tokens, {len(self.banned_tokens)} banned_tokens",
            "correct the config",
        )
        if self.encoder is not None:
            self.encoder.check_width(self.width)

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
        """Of a translator's sources."""
        own = None if self.encoder is None else self.encoder.vocab_size
        return self.vocab_size if own is None else own

    def with_mixers(self, *mixers: MixerConfig | PartConfig, group: str = "layers") -> ModelConfig:
        """This model with other mixers, one a layer; see `LayerConfig.with_mixer`."""
        assert len(mixers) == len(self.layers)
        return dataclasses.replace(self, layers=mapped(self.layers, lambda n, old: old.with_mixer(mixers[n], group)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or for a checkpoint; `from_dict` gives an equal config back."""
        data: dict[str, Any] = to_plain(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        return from_plain(cls, data, "model")

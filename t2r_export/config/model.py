"""What a model is, as plain data: frozen, validated on construction, to JSON and back unchanged.

Imports without torch, so that commands can print help and read metadata at once. Letters (B, T, H, G, K, V, D, L) are
those of the README. The mixers' own configs stand in `t2r_export.config.mixers`, the feed-forwards' in
`t2r_export.config.feed_forward`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.feed_forward import DENSE, FeedForwardConfig, feed_forward_from_dict
from t2r_export.config.mixers import MixerConfig, mixer_from_dict
from t2r_export.config.validation import (
    MAX_LAYERS,
    MAX_TURNED,
    MAX_VOCABULARY,
    choice,
    fields,
    flag,
    need,
    number,
    size,
)


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions (Su et al. 2021): pair i of a head turns by position · theta^(-2i/d)."""

    theta: float = 10000.0
    scaling: str = "none"  # none | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3 only, as are the two below
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    SCALINGS: ClassVar[tuple[str, ...]] = ("none", "linear", "llama3")

    def __post_init__(self) -> None:
        number("rotary theta", self.theta)
        choice("rotary scaling", self.scaling, self.SCALINGS)
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            number(f"rotary {name}", getattr(self, name))
        size("rotary original_max_positions", self.original_max_positions, 1 << 31)
        need(
            self.scaling != "llama3" or self.high_freq_factor > self.low_freq_factor,
            "rotary high_freq_factor above low_freq_factor",
            f"{self.high_freq_factor} and {self.low_freq_factor}",
            "correct the rotary scaling",
        )


def _turned(name: str, value: int, kind: str) -> None:
    """Half as many angles as `value`, in a table that is there before any weight is."""
    need(
        value % 2 == 0 and value <= MAX_TURNED,
        f"an even {name} of at most {MAX_TURNED} for {kind} positions",
        value,
        f"correct {name}",
    )


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only Transformer: pre-norm blocks of one token mixer and one feed-forward each.

    With recurrent mixers, no norm, no residual and no feed-forward it is a plain LSTM or GRU language model. Sizes that
    none of its layers uses (heads of an LSTM, say) are 1.
    """

    vocab_size: int
    width: int  # D
    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; divides H
    head_size: int  # d of q and k, and V of v
    ffn_size: int
    layers: tuple[MixerConfig, ...]  # a mixer a layer
    norm: str = "layer"
    norm_eps: float = 1e-5
    activation: str = "gelu_tanh"
    gated_ffn: bool = False  # SwiGLU form: down(act(gate(x)) * up(x))
    position: str = "learned"
    max_positions: int | None = None  # rows of the learned table; None where nothing ends
    rotary: RotaryConfig | None = None
    tied_head: bool = True
    qkv_bias: bool = True
    output_bias: bool = True  # of the attention's output projection
    ffn_bias: bool = True
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    feed_forwards: tuple[FeedForwardConfig, ...] = ()  # a feed-forward a layer; empty: dense in all
    residual: bool = True  # a block adds to its input; false: its output takes the input's place

    # left out of the plain data where they are the default: models without them keep their files, byte for byte
    LATER: ClassVar[dict[str, Any]] = {"feed_forwards": [], "residual": True}
    NORMS: ClassVar[tuple[str, ...]] = ("layer", "rms", "none")
    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("relu", "gelu", "gelu_tanh", "silu")
    # where order comes from: a table, sines added to the embedding, a rotation of q and k, or the recurrence alone
    POSITION_KINDS: ClassVar[tuple[str, ...]] = ("learned", "sinusoidal", "rotary", "none")

    def __post_init__(self) -> None:
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        for name in ("width", "heads", "kv_heads", "head_size", "ffn_size"):
            size(name, getattr(self, name))
        count = len(self.layers)
        need(1 <= count <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", count, "correct the number of layers")
        need(
            self.heads % self.kv_heads == 0,
            f"kv_heads to divide heads={self.heads}",
            self.kv_heads,
            "correct kv_heads",
        )
        choice("norm", self.norm, self.NORMS)
        choice("activation", self.activation, self.ACTIVATIONS)
        choice("position", self.position, self.POSITION_KINDS)
        number("norm_eps", self.norm_eps)
        for name in ("gated_ffn", "tied_head", "qkv_bias", "output_bias", "ffn_bias", "residual"):
            flag(name, getattr(self, name))
        self._check_positions()
        self._check_tokens()
        need(
            len(self.feed_forwards) in (0, count),
            f"a feed-forward for each of the {count} layers, or none named",
            len(self.feed_forwards),
            "correct feed_forwards",
        )
        for mixer in self.layers:
            mixer.check(self)

    def __deepcopy__(self, _: dict[int, Any]) -> ModelConfig:
        """Itself, which nothing changes: every mixer has it, and a copy of one would copy the configs of all layers."""
        return self

    def feed_forward(self, layer: int) -> FeedForwardConfig:
        """What a layer's feed-forward is."""
        return self.feed_forwards[layer] if self.feed_forwards else DENSE

    def _check_positions(self) -> None:
        if self.position == "learned":
            size("max_positions", self.max_positions, 1 << 31)
        else:
            need(
                self.max_positions is None,
                f"no max_positions, since {self.position} positions do not end",
                self.max_positions,
                "leave max_positions out",
            )
        rotary = self.position == "rotary"
        need(
            rotary == (self.rotary is not None),
            "a rotary config exactly when position is 'rotary'",
            f"position={self.position!r}, rotary={self.rotary}",
            "correct the config",
        )
        if rotary:
            _turned("head_size", self.head_size, "rotary")
        if self.position == "sinusoidal":
            _turned("width", self.width, "sinusoidal")

    def _check_tokens(self) -> None:
        special = (*self.eos_tokens, *([] if self.bos_token is None else [self.bos_token]))
        for token in special:
            need(
                isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self.vocab_size,
                f"special tokens from 0 to {self.vocab_size - 1}",
                token,
                "correct bos_token and eos_tokens",
            )

    def describe_layers(self) -> list[dict[str, Any]]:
        """Each layer for a person or a graph's metadata: its mixer, the sizes of its heads, and its feed-forward where
        that is not dense."""
        sizes = {"heads": self.heads, "kv_heads": self.kv_heads, "head_size": self.head_size}
        others = [
            {} if f == DENSE else {"feed_forward": f.to_dict()} for f in map(self.feed_forward, range(len(self.layers)))
        ]
        return [{**mixer.to_dict(), **sizes, **other} for mixer, other in zip(self.layers, others, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or for a checkpoint; `from_dict` gives an equal config back."""
        data = dataclasses.asdict(self)
        data["layers"] = [mixer.to_dict() for mixer in self.layers]
        data["eos_tokens"] = list(self.eos_tokens)
        data["feed_forwards"] = [feed_forward.to_dict() for feed_forward in self.feed_forwards]
        return {key: value for key, value in data.items() if key not in self.LATER or value != self.LATER[key]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        values = fields(cls, data, "the model's config")
        for name, read in (("layers", mixer_from_dict), ("feed_forwards", feed_forward_from_dict)):
            items = values.get(name, ())
            need(
                isinstance(items, list | tuple) and len(items) <= MAX_LAYERS,
                f"{name} to be a list of at most {MAX_LAYERS}",
                type(items).__name__,
                "correct the config",
            )
            values[name] = tuple(read(item) for item in items)
        if values.get("rotary") is not None:
            values["rotary"] = RotaryConfig(**fields(RotaryConfig, values["rotary"], "the rotary config"))
        eos = values.get("eos_tokens", ())
        need(isinstance(eos, list | tuple), "eos_tokens to be a list", type(eos).__name__, "correct eos_tokens")
        values["eos_tokens"] = tuple(eos)
        return cls(**values)

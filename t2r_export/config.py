"""What a model is, as plain data: frozen, validated on construction, to JSON and back unchanged.

Imports without torch, so that commands can print help and read metadata at once. Letters (B, T, H, G, K, V, D, L) are
those of the README. A mixer's config stands in `MIXER_CONFIGS` under its `kind`; adding a mixer adds a line there and
one in `t2r_export.mixers.MIXERS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_runtime.errors import UserError

# Bounds on what a stranger's config may ask for. They stop an absurd number before anything is allocated, and are
# far above any decoder that a single machine runs.
MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # any one of D, ffn, heads, head size, feature size
MAX_VOCABULARY = 1 << 22
LARGEST = 1e300  # any number that is not a size


def _need(condition: bool, expected: str, received: Any, do: str) -> None:
    if not condition:
        raise UserError(expected, str(received), do)


def _size(name: str, value: Any, limit: int = MAX_SIZE) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _need(
        whole and 1 <= value <= limit,
        f"{name} to be a whole number from 1 to {limit}",
        repr(value),
        f"correct {name}",
    )


def _choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    _need(value in known, f"{name} to be one of {', '.join(known)}", repr(value), f"choose one of those for {name}")


def _number(name: str, value: Any, positive: bool = True) -> None:
    # a comparison, because a NaN fails it and a whole number too large for a float does not raise in it
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    _need(
        fine and (value > 0 or not positive),
        f"{name} to be a finite{' positive' if positive else ''} number",
        repr(value),
        f"correct {name}",
    )


def _flag(name: str, value: Any) -> None:
    _need(isinstance(value, bool), f"{name} to be true or false", repr(value), f"correct {name}")


def _fields(cls: type, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Check that `data` has the dataclass's fields and no others, so that a misspelt key is never ignored."""
    _need(isinstance(data, Mapping), f"{what} to be a JSON object", type(data).__name__, f"correct {what}")
    names = {f.name for f in dataclasses.fields(cls)}
    required = {
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    unknown, missing = sorted(set(data) - names), sorted(required - set(data))
    _need(
        not unknown and not missing,
        f"{what} to have the keys {', '.join(sorted(names))}",
        f"missing {missing or 'none'}, unexpected {unknown or 'none'}",
        f"correct {what}, or read it with the version that wrote it",
    )
    return dict(data)


@dataclass(frozen=True)
class Guard:
    """How the denominator φ(q)·z is kept from zero: `clamp` is max(den, eps), `add` is den + eps.

    Part of the model: it is the same in training, in the eager step, in the graph and in every runtime.
    """

    kind: str = "add"
    eps: float = 1e-6

    KINDS: ClassVar[tuple[str, ...]] = ("clamp", "add")

    def __post_init__(self) -> None:
        _choice("guard kind", self.kind, self.KINDS)
        _number("guard eps", self.eps)


@dataclass(frozen=True)
class SoftmaxConfig:
    """Causal softmax attention with a cache that grows by one key and value a step."""

    kind: ClassVar[str] = "softmax"
    folded: ClassVar[bool] = False


@dataclass(frozen=True)
class LinearConfig:
    """Linear attention with T2R's learned feature map φ(x) = relu(W_φ x + b_φ) (Kasai et al. 2021, eq. 6)."""

    feature_size: int  # K
    shared_features: bool = False  # one φ for q and k of a head (needs G == H), as the authors' code does
    positions: str = "keep"  # keep: rotate q and k before φ; drop: φ sees them unrotated. Same thing without rotary.
    query_scale: float = 1.0  # multiplies q before φ; the authors use d ** -0.5
    guard: Guard = Guard()
    folded: bool = False  # W_φ is inside the projections (eq. 8)
    feature_map: str = "relu"

    kind: ClassVar[str] = "linear"
    FEATURE_MAPS: ClassVar[tuple[str, ...]] = ("relu",)
    POSITIONS: ClassVar[tuple[str, ...]] = ("keep", "drop")

    def __post_init__(self) -> None:
        _size("feature_size", self.feature_size)
        _choice("feature_map", self.feature_map, self.FEATURE_MAPS)
        _choice("positions", self.positions, self.POSITIONS)
        _number("query_scale", self.query_scale)
        _flag("shared_features", self.shared_features)
        _flag("folded", self.folded)
        _need(isinstance(self.guard, Guard), "a guard with kind and eps", repr(self.guard), "correct the guard")


MixerConfig = SoftmaxConfig | LinearConfig
MIXER_CONFIGS: dict[str, type[SoftmaxConfig] | type[LinearConfig]] = {c.kind: c for c in (SoftmaxConfig, LinearConfig)}


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
        _number("rotary theta", self.theta)
        _choice("rotary scaling", self.scaling, self.SCALINGS)
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _number(f"rotary {name}", getattr(self, name))
        _size("rotary original_max_positions", self.original_max_positions, 1 << 31)
        _need(
            self.scaling != "llama3" or self.high_freq_factor > self.low_freq_factor,
            "rotary high_freq_factor above low_freq_factor",
            f"{self.high_freq_factor} and {self.low_freq_factor}",
            "correct the rotary scaling",
        )


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only Transformer: pre-norm blocks of one token mixer and one feed-forward each."""

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

    NORMS: ClassVar[tuple[str, ...]] = ("layer", "rms")
    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("relu", "gelu", "gelu_tanh", "silu")
    # where order comes from: a table, sines added to the embedding, a rotation of q and k, or the recurrence alone
    POSITION_KINDS: ClassVar[tuple[str, ...]] = ("learned", "sinusoidal", "rotary", "none")

    def __post_init__(self) -> None:
        _size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        for name in ("width", "heads", "kv_heads", "head_size", "ffn_size"):
            _size(name, getattr(self, name))
        count = len(self.layers)
        _need(1 <= count <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", count, "correct the number of layers")
        _need(
            self.heads % self.kv_heads == 0,
            f"kv_heads to divide heads={self.heads}",
            self.kv_heads,
            "correct kv_heads",
        )
        _choice("norm", self.norm, self.NORMS)
        _choice("activation", self.activation, self.ACTIVATIONS)
        _choice("position", self.position, self.POSITION_KINDS)
        _number("norm_eps", self.norm_eps)
        for name in ("gated_ffn", "tied_head", "qkv_bias", "output_bias", "ffn_bias"):
            _flag(name, getattr(self, name))
        self._check_positions()
        self._check_tokens()
        for mixer in self.layers:
            if isinstance(mixer, LinearConfig):
                self._check_linear(mixer)

    def _check_positions(self) -> None:
        if self.position == "learned":
            _size("max_positions", self.max_positions, 1 << 31)
        else:
            _need(
                self.max_positions is None,
                f"no max_positions, since {self.position} positions do not end",
                self.max_positions,
                "leave max_positions out",
            )
        rotary = self.position == "rotary"
        _need(
            rotary == (self.rotary is not None),
            "a rotary config exactly when position is 'rotary'",
            f"position={self.position!r}, rotary={self.rotary}",
            "correct the config",
        )
        _need(not rotary or self.head_size % 2 == 0, "an even head_size for rotary positions", self.head_size, "fix it")
        _need(
            self.position != "sinusoidal" or self.width % 2 == 0,
            "an even width for sinusoidal positions",
            self.width,
            "correct the width",
        )

    def _check_tokens(self) -> None:
        special = (*self.eos_tokens, *([] if self.bos_token is None else [self.bos_token]))
        for token in special:
            _need(
                isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self.vocab_size,
                f"special tokens from 0 to {self.vocab_size - 1}",
                token,
                "correct bos_token and eos_tokens",
            )

    def _check_linear(self, mixer: LinearConfig) -> None:
        _need(
            not mixer.shared_features or self.kv_heads == self.heads,
            "as many kv heads as query heads where q and k share a feature map",
            f"{self.kv_heads} kv heads, {self.heads} query heads",
            "leave shared features out",
        )
        _need(
            not mixer.folded or self.position != "rotary" or mixer.positions == "drop",
            "an unfolded layer where positions are rotated before φ",
            "folded=True with positions='keep'",
            "set positions to 'drop', or folded to false",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON or for a checkpoint; `from_dict` gives an equal config back."""
        data = dataclasses.asdict(self)
        data["layers"] = [{"kind": m.kind, **dataclasses.asdict(m)} for m in self.layers]
        data["eos_tokens"] = list(self.eos_tokens)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        fields = _fields(cls, data, "the model's config")
        layers = fields["layers"]
        _need(
            isinstance(layers, list | tuple) and len(layers) <= MAX_LAYERS,
            f"layers to be a list of at most {MAX_LAYERS}",
            type(layers).__name__,
            "correct the config",
        )
        fields["layers"] = tuple(_mixer_from_dict(m) for m in layers)
        if fields.get("rotary") is not None:
            fields["rotary"] = RotaryConfig(**_fields(RotaryConfig, fields["rotary"], "the rotary config"))
        eos = fields.get("eos_tokens", ())
        _need(isinstance(eos, list | tuple), "eos_tokens to be a list", type(eos).__name__, "correct eos_tokens")
        fields["eos_tokens"] = tuple(eos)
        return cls(**fields)


def _mixer_from_dict(data: Mapping[str, Any]) -> MixerConfig:
    _need(isinstance(data, Mapping), "a layer's config to be a JSON object", type(data).__name__, "correct the config")
    fields = dict(data)
    kind = fields.pop("kind", None)
    _choice("mixer kind", kind, tuple(MIXER_CONFIGS))
    cls = MIXER_CONFIGS[str(kind)]
    fields = _fields(cls, fields, f"a {kind} layer's config")
    if isinstance(fields.get("guard"), Mapping):
        fields["guard"] = Guard(**_fields(Guard, fields["guard"], "the guard"))
    return cls(**fields)

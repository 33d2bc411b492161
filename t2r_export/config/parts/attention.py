"""Attention to the text, to a source, and to both. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import INSIDES, MixerConfig
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.validation import choice, flag, need, size

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "mish", "gelu_10")


@dataclass(frozen=True, kw_only=True)
class InsideConfig(HeadsConfig, PartConfig):
    """Base of the parts that have a mixer between their projections."""

    form: ClassVar[str]  # the column of INSIDES in which the inside's class stands

    inside: MixerConfig

    def __post_init__(self) -> None:
        HeadsConfig.__post_init__(self)
        PartConfig.__post_init__(self)
        need(isinstance(self.inside, MixerConfig), f"a mixer inside {self.kind}", repr(self.inside), "correct the part")
        possible = tuple(kind for kind, entry in INSIDES.items() if self.form in entry.forms)
        choice(f"the kind of mixer inside {self.kind}", self.inside.kind, possible)
        if self.form != "causal":
            self.inside.check_at_once(self.kind)
        if self.positions is not None and self.positions.biases:
            self._check_bias(self.positions.kind)
        self.inside.check(self)

    def _check_bias(self, kind: str) -> None:
        need(self.form == "causal", f"{kind} positions in attention to the tokens before", self.kind, "choose others")
        expected = f"softmax, window, span or hybrid layers with {kind} positions, or linear ones that drop them"
        need(self.inside.takes_bias, expected, f"a {self.inside.kind} layer", "choose another mixer, or positions=drop")

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
        return self.inside.lends

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

    def state_summary(self) -> str:
        return self.inside.state_summary(self)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(InsideConfig):
    """Attention to the tokens before, by any mixer."""

    kind: ClassVar[str] = "attention"
    form: ClassVar[str] = "causal"


@dataclass(frozen=True, kw_only=True)
class EncoderAttentionConfig(InsideConfig):
    """Attention of an encoder: every token of a source sees every other."""

    kind: ClassVar[str] = "encoder_attention"
    form: ClassVar[str] = "encoder"
    group: ClassVar[str] = "encoder"


@dataclass(frozen=True, kw_only=True)
class CrossConfig(InsideConfig):
    """Attention of a decoder's layer to a source. A source has no place in the text: nothing rotates."""

    kind: ClassVar[str] = "cross"
    form: ClassVar[str] = "cross"
    reads_source: ClassVar[bool] = True
    group: ClassVar[str] = "crosses"

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            self.positions is None and not self.qk_norm and not self.gate,
            "attention to a source without positions, qk_norm and gate",
            "such",
            "leave them out",
        )

    @property
    def cache_size(self) -> int:
        return 0  # what is kept of a source does not grow


@dataclass(frozen=True, kw_only=True)
class MergedConfig(InsideConfig):
    """Attention to prefix and source with one query and under one normalizer (Li et al. 2021, arXiv 2101.00542,
    section 3): softmax, or linear with sums that only add. With `hidden`, the values hold a feed-forward's first matrix
    and the output is its second."""

    kind: ClassVar[str] = "merged"
    form: ClassVar[str] = "causal"
    reads_source: ClassVar[bool] = True

    shared: bool = False  # the source's keys and values have the prefix's projections, and none of their own
    hidden: int = 0  # of the feed-forward inside; 0: there is none
    hidden_bias: bool = True
    activation: str = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("shared", self.shared)
        flag("hidden_bias", self.hidden_bias)
        size("hidden", self.hidden, least=0)
        choice("activation", self.activation, ACTIVATIONS)
        self.inside.check_merged()
        plain = self.positions is None and not self.qk_norm and not self.gate
        need(plain, "merged layers without positions, qk_norm and gate", "such", "choose other cross layers")
        if self.hidden:
            self._check_hidden()

    def _check_hidden(self) -> None:
        what = "merged layers with the feed-forward inside"
        softmax = self.inside.kind == "softmax"
        need(softmax, f"softmax in {what}", self.inside.kind, "choose it, or leave feed_forward out")
        fits = self.kv_heads == self.heads and self.hidden % self.heads == 0
        received = f"{self.kv_heads} for {self.heads}, and ffn_size {self.hidden}"
        need(
            fits, f"{what} to have a kv head for each head, and as much of ffn_size for each", received, "correct them"
        )

    @property
    def borrows(self) -> bool:
        return False

    @property
    def lends(self) -> bool:
        return False

    def summary(self) -> str:
        own = ", by its own projections" * self.shared
        inside = ", whose values are the feed-forward's hidden numbers" * bool(self.hidden)
        return ", ".join(filter(None, (self.inside.summary(), f"with the source in it{own}{inside}")))

"""What reads the source of a translation, and what layers that look at it may be, as plain data, without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import ENCODERS, LinearConfig, MixerConfig, SoftmaxConfig, mixer_from_dict
from t2r_export.config.tagged import Entry
from t2r_export.config.validation import MAX_LAYERS, MAX_VOCABULARY, fields, need, size


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A stack that sees a whole source at once; norms, activation, kind of positions and width are the decoder's."""

    layers: tuple[MixerConfig, ...]  # softmax or linear, in both directions
    attention: AttentionConfig
    ffn_size: int = 1
    vocab_size: int | None = None  # of a table of its own; None: the decoder's is for both
    max_positions: int | None = None  # rows of the learned table; None where nothing ends

    def __post_init__(self) -> None:
        need(1 <= len(self.layers) <= MAX_LAYERS, f"1 to {MAX_LAYERS} layers", len(self.layers), "correct the encoder")
        size("ffn_size", self.ffn_size)
        if self.vocab_size is not None:
            size("vocab_size", self.vocab_size, MAX_VOCABULARY)
        check_source_mixers(self.layers, ENCODERS, self.attention, "encoder")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` gives an equal config back."""
        return {**dataclasses.asdict(self), "layers": [mixer.to_dict() for mixer in self.layers]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EncoderConfig:
        """Inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        values = fields(cls, data, "the encoder's config")
        values["layers"] = mixers_from(values.get("layers", ()), ENCODERS, "encoder's layers")
        values["attention"] = AttentionConfig.from_dict(values.get("attention", {}))
        return cls(**values)


def mixers_from(items: Any, table: Mapping[str, Entry[MixerConfig]], what: str) -> tuple[MixerConfig, ...]:
    """Configs of a table from plain data. Raises UserError for what is no list of such."""
    listed = isinstance(items, list | tuple) and len(items) <= MAX_LAYERS
    need(listed, f"{what} to be a list of at most {MAX_LAYERS}", type(items).__name__, "correct the config")
    return tuple(mixer_from_dict(item, table) for item in items)


def check_merged(mixer: MixerConfig, attention: AttentionConfig | None) -> None:
    """Refuse with a UserError a layer that cannot read prefix and source as one: what it keeps must be a sum over
    tokens, or all of them, and a source has no place in the text."""
    rule = getattr(mixer, "update_rule", "linear")
    need(
        mixer.kind in ("softmax", "linear") and "delta" not in rule,
        "softmax layers, or linear ones of the update rules linear and gated, that are merged",
        f"a {mixer.kind} layer" + (f" of the rule {rule}" if "delta" in rule else ""),
        "choose one of those",
    )
    for name in ("memory", "conv"):
        need(not getattr(mixer, name, 0), f"no {name} in merged layers", str(getattr(mixer, name, 0)), "leave it out")
    rotated = attention is not None and (attention.rotary is not None or attention.qk_norm)
    need(not rotated, "merged layers without rotary positions and qk_norm", "such", "choose other cross layers")


def check_hidden(mixer: MixerConfig, attention: AttentionConfig | None, ffn_size: int, plain: bool) -> None:
    """Refuse with a UserError a merged layer that cannot have a feed-forward's first matrix in its values.

    Args:
        plain: whether the feed-forwards are not gated, and the layer has none beside.
    """
    what = "merged layers with the feed-forward inside"
    need(isinstance(mixer, SoftmaxConfig), f"softmax in {what}", mixer.kind, "choose it, or leave feed_forward out")
    need(plain, f"{what} to have no other, and no gate in it", "one", "give those layers the feed-forward none")
    assert attention is not None
    fits = attention.kv_heads == attention.heads and ffn_size % attention.heads == 0
    received = f"{attention.kv_heads} for {attention.heads}, and ffn_size {ffn_size}"
    need(fits, f"{what} to have a kv head for each head, and as much of ffn_size for each", received, "correct them")


def check_source_mixers(
    mixers: Sequence[MixerConfig], table: Mapping[str, Entry[MixerConfig]], attention: AttentionConfig | None, what: str
) -> None:
    """Refuse with a UserError options that say how a text is taken in token after token: a source is there at once."""
    for mixer in mixers:
        need(mixer.kind in table, f"{what} layers of the kinds {', '.join(table)}", mixer.kind, "choose one of them")
        need(attention is not None, f"an attention config for the {what} layers", "none", "add attention to the config")
        usual = LinearConfig(feature_size=1) if isinstance(mixer, LinearConfig) else type(mixer)()
        for name in ("memory", "update_rule", "gate", "moving_average", "conv", "output_gate", "positions", "redraw"):
            given = getattr(mixer, name, None)
            fine = given == getattr(usual, name, None)
            need(fine, f"no {name} in {what} layers", f"{name} {given}", f"leave {name} out")
        mixer.check(attention)

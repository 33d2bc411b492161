"""Layers that take the attention weights of the layer below. Imports without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers.base import MixerConfig
from t2r_export.config.validation import need


@dataclass(frozen=True)
class SharedConfig(MixerConfig):
    """Softmax attention with the weights of the layer below and values of its own (SAN, Xiao et al. 2019, arXiv
    1906.11024)."""

    kind: ClassVar[str] = "shared"
    grows: ClassVar[bool] = True
    borrows: ClassVar[bool] = True

    @property
    def lends(self) -> bool:
        return True  # what it was lent itself

    def summary(self) -> str:
        return "the attention weights of the layer below"

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "v of every token"


def check_borrowed(mixers: Sequence[MixerConfig], attentions: Sequence[AttentionConfig | None], what: str) -> None:
    """Refuse with a UserError a layer that shares weights which the one below does not have."""
    for layer, mixer in enumerate(mixers):
        if not mixer.borrows:
            continue
        below = layer - 1
        need(
            layer > 0 and mixers[below].lends,
            f"a softmax layer without memory below {what} {layer}, which shares its attention weights",
            ", ".join(filter(None, (mixers[below].kind, mixers[below].summary()))) if layer else "none",
            "choose another layer",
        )
        heads = [None if a is None else (a.heads, a.kv_heads) for a in (attentions[below], attentions[layer])]
        need(heads[0] == heads[1], f"as many heads in {what}s that share attention weights", heads, "correct the heads")

"""The base of what mixes inside attention, and what it is made of. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.options import option
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import choice, need, number
from t2r_runtime.errors import UserError

MEMORY = "Persistent memory: number of trained keys and values per kv head that every token sees."


@dataclass(frozen=True)
class Guard:
    """How the denominator φ(q)·z is kept from zero: `clamp` is max(den, eps), `add` is den + eps.

    Part of the model: it is the same in training, in the eager step, in the graph and in every runtime.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("clamp", "add")

    kind: str = option("How the denominator is kept from zero.", "add", KINDS)
    eps: float = option(
        "Smallest denominator (clamp), or what is added to it (add).", 1e-6, usual="1e-06, with positions after 1"
    )

    def __post_init__(self) -> None:
        choice("guard kind", self.kind, self.KINDS)
        number("guard eps", self.eps)


@dataclass(frozen=True)
class MixerConfig(Kind):
    """What attention does between its projections to q, k and v and its output."""

    TABLE: ClassVar[str] = "t2r_export.config.mixers:INSIDES"
    grows: ClassVar[bool] = False  # with every token, what is kept
    borrows: ClassVar[bool] = False  # the attention weights of the layer below

    @property
    def folded(self) -> bool:
        """Whether the exported form of the weights has taken the place of the trained one."""
        return False

    @property
    def takes_bias(self) -> bool:
        """Whether positions may be a bias of its scores: a softmax has such scores."""
        return True

    @property
    def packed(self) -> bool:
        """Whether one projection gives what q, k and v are made of, with the mixer's own maps inside."""
        return False

    @property
    def lends(self) -> bool:
        """Whether the layer above can have this one's attention weights."""
        return False

    def check(self, heads: HeadsConfig) -> None:
        """Refuse with a UserError what cannot be between these heads."""

    def check_at_once(self, what: str) -> None:
        """Refuse with a UserError options of a causal mixer, in attention that sees a whole source at once."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            fine = not field.metadata.get("causal") or value == field.default
            what = what.removesuffix("_attention")
            need(fine, f"no {field.name} in {what} layers", f"{field.name} {value}", f"leave {field.name} out")

    def check_merged(self) -> None:
        """Refuse with a UserError what cannot read prefix and source as one: what is kept must be a sum over tokens, or
        all of them."""
        raise UserError(
            "softmax layers, or linear ones of the update rules linear and gated, that are merged",
            f"a {self.kind} layer",
            "choose one of those",
        )

    def feature_rotation(self, heads: HeadsConfig) -> tuple[RotaryConfig, int] | None:
        """By what features rotate after the feature map, and how many of a head's; None: by nothing."""
        return None

    def state_summary(self, heads: HeadsConfig) -> str:
        """What is carried from one token to the next, for a person, behind `keeps`."""
        raise NotImplementedError


def require_none_merged(config: MixerConfig, *names: str) -> None:
    """Refuse with a UserError options that merged attention has no form for."""
    for name in names:
        given = getattr(config, name)
        need(not given, f"no {name} in merged layers", str(given), "leave it out")

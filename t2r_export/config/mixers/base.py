"""The base of the mixers' configs, and what they are made of. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.attention import AttentionConfig, RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import choice, number


def option(
    help: str, default: Any = dataclasses.MISSING, choices: tuple[str, ...] = (), usual: Any = dataclasses.MISSING
) -> Any:
    """A field that a person sets: `t2r convert` makes an option of it, with this help.

    Without a default, a file has to say it; and so has a person, unless there is a `usual` value.
    """
    usual = default if usual is dataclasses.MISSING else usual
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "usual": usual})


@dataclass(frozen=True)
class Guard:
    """How the denominator φ(q)·z is kept from zero: `clamp` is max(den, eps), `add` is den + eps.

    Part of the model: it is the same in training, in the eager step, in the graph and in every runtime.
    """

    kind: str = "add"
    eps: float = 1e-6

    KINDS: ClassVar[tuple[str, ...]] = ("clamp", "add")

    def __post_init__(self) -> None:
        choice("guard kind", self.kind, self.KINDS)
        number("guard eps", self.eps)


@dataclass(frozen=True)
class MixerConfig(Kind):
    """Base of the mixers' configs."""

    grows: ClassVar[bool] = False  # with every token, what a layer keeps
    attends: ClassVar[bool] = True  # between projections to q, k and v: an attention layer
    borrows: ClassVar[bool] = False  # the attention weights of the layer below

    @property
    def folded(self) -> bool:
        """Whether the exported form of the weights has taken the place of the trained one."""
        return False

    @property
    def packed(self) -> bool:
        """Whether one projection gives what q, k and v are made of, with the mixer's own maps inside."""
        return False

    @property
    def lends(self) -> bool:
        """Whether the layer above can have this one's attention weights."""
        return False

    def check(self, attention: AttentionConfig | None) -> None:
        """Refuse with a UserError what a layer of this `attention` cannot be."""

    def feature_rotation(self, attention: AttentionConfig) -> tuple[RotaryConfig, int] | None:
        """By what a layer rotates its features after the feature map, and how many of a head's; None: by nothing."""
        return None

    def state_summary(self, attention: AttentionConfig | None) -> str:
        """What a layer carries from one token to the next, for a person, behind `keeps`."""
        raise NotImplementedError

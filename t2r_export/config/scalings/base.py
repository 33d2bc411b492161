"""The base of the scalings of rotary frequencies. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.tagged import Kind


@dataclass(frozen=True)
class ScalingConfig(Kind):
    """How rotary frequencies differ from theta^(-2i/d), as a checkpoint was trained for long texts.

    A kind is a config with its formula, and a line in `SCALINGS`. The formula is written for any float32 array: torch
    computes it, as the code of the trained checkpoints does, and this room imports nothing.
    """

    TABLE: ClassVar[str] = "t2r_export.config.scalings:SCALINGS"

    @property
    def end(self) -> int | None:
        """The number of tokens beyond which texts have other frequencies; None: all texts have the same."""
        return None

    def for_length(self, length: int | None) -> ScalingConfig:
        """The scaling of texts of this length, without an end; None: of all texts, as of short ones."""
        return self

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0

    def check(self, theta: float, size: int) -> None:
        """Refuse with a UserError frequencies that cannot be scaled so."""

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        """The frequency of each pair, float32 (size/2); `pairs` are 0, 2, …, size - 2."""
        raise NotImplementedError


def plain(theta: float, pairs: Any, size: int) -> Any:
    """Frequencies that are not scaled."""
    return 1.0 / (theta ** (pairs / size))

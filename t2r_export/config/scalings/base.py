"""The base of the scalings of rotary frequencies. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.tagged import Kind


@dataclass(frozen=True)
class ScalingConfig(Kind):
    """A scaling of the rotary frequencies theta^(-2i/d), for checkpoints trained for long texts.

    A kind is a config with its formula, and a line in `SCALINGS`. Formulas accept float32 tensors without importing
    torch here; torch evaluates them, as in the code of the trained checkpoints.
    """

    TABLE: ClassVar[str] = "t2r_export.config.scalings:SCALINGS"

    @property
    def end(self) -> int | None:
        """The text length in tokens beyond which frequencies change; None: they never change."""
        return None

    def for_length(self, length: int | None) -> ScalingConfig:
        """The scaling for texts of this length, without an end; None: the scaling for short texts."""
        return self

    @property
    def magnitude(self) -> float:
        """Factor of cosines and sines."""
        return 1.0

    def check(self, theta: float, size: int) -> None:
        """Raise UserError for frequencies that cannot be scaled."""

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        """The frequency of each pair, float32 (size/2); `pairs` are 0, 2, …, size - 2."""
        raise NotImplementedError


def plain(theta: float, pairs: Any, size: int) -> Any:
    """Unscaled frequencies."""
    return 1.0 / (theta ** (pairs / size))

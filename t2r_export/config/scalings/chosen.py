"""A subset of the frequencies of a larger rotation. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.validation import MAX_TURNED, need, number, size


@dataclass(frozen=True)
class ChosenScaling(ScalingConfig):
    """The frequencies of the pairs that pruning kept of `of` dimensions, divided by the factor."""

    kind: ClassVar[str] = "chosen"

    pairs: tuple[int, ...]
    of: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        size("the numbers that rotated", self.of, MAX_TURNED)
        number("rotary factor", self.factor)
        for pair in self.pairs:
            size("a rotary pair", pair, self.of // 2 - 1, least=0)

    def check(self, theta: float, size: int) -> None:
        count = len(self.pairs)
        need(count == size // 2, f"{size // 2} rotary pairs for {size} numbers", count, "correct them")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return plain(theta, pairs.new_tensor([2.0 * pair for pair in self.pairs]), self.of) / self.factor

"""A theta scaled by a fixed factor, "NTK-aware" as in HunYuan's models. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.validation import need, number


@dataclass(frozen=True)
class NtkScaling(ScalingConfig):
    """theta · alpha^(d/(d - 2)): the fastest frequency stays, the slowest is divided by alpha."""

    kind: ClassVar[str] = "ntk"

    alpha: float

    def __post_init__(self) -> None:
        number("rotary alpha", self.alpha)

    def check(self, theta: float, size: int) -> None:
        need(size > 2, "more than 2 numbers of a head that rotate, with ntk scaling", size, "choose another scaling")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return plain(theta * self.alpha ** (size / (size - 2)), pairs, size)

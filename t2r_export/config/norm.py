"""Norms as plain data. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.validation import choice, number


@dataclass(frozen=True)
class NormConfig:
    """Layer norm (Ba et al. 2016), with weight and bias, or RMS norm (Zhang and Sennrich 2019), with a weight."""

    kind: str = "layer"
    eps: float = 1e-5

    KINDS: ClassVar[tuple[str, ...]] = ("layer", "rms")

    def __post_init__(self) -> None:
        choice("norm", self.kind, self.KINDS)
        number("norm_eps", self.eps)

"""Diagonal state space layers. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class S4DConfig(PartConfig):
    """A diagonal state space per channel of the model's width (S4D: Gu et al. 2022, arXiv 2206.11893)."""

    kind: ClassVar[str] = "s4d"

    state_size: int  # real numbers per channel
    complex: bool = True  # half of them real, half imaginary parts; false: real decays

    def __post_init__(self) -> None:
        super().__post_init__()
        even = not self.complex or self.state_size % 2 == 0
        need(even, "an even state_size of complex states", self.state_size, "correct state_size")

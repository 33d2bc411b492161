"""Reports of `verify`: measured errors, their tolerances, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from t2r_export.proof.tolerances import ROUNDING


@dataclass(frozen=True)
class Check:
    """A measured error and its tolerance."""

    name: str
    worst: float
    tolerance: float
    rounding: float | None = None  # the model's own rounding error, if measured

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN does not pass

    @property
    def undecided(self) -> bool:
        """Whether the error exceeds the tolerance, but may be the model's own rounding: the graph may be right."""
        return self.rounding is not None and self.tolerance < self.worst <= ROUNDING * self.rounding

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "passed": self.passed}


@dataclass
class Report:
    """Result of `verify`."""

    provider: str
    quantization: str
    steps: int
    same_checkpoint: bool
    reference: str = "float32"  # precision of the eager model
    checks: list[Check] = field(default_factory=list)
    first_greedy_mismatch: int | None = None  # first step with another greedy token, ties excepted
    greedy_agreement: float = 1.0  # share of equal greedy tokens
    greedy_bound: float = 1.0  # minimum; 1: all equal, ties excepted
    redrawn: int = 0  # checks repeated with other texts, because the model's own rounding left them undecided

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and self.greedy_passed

    @property
    def greedy_passed(self) -> bool:
        if self.greedy_bound == 1:
            return self.first_greedy_mismatch is None
        return self.greedy_agreement >= self.greedy_bound  # NaN does not pass

    @property
    def undecided(self) -> bool:
        """Whether a failed check may be due to the model's own rounding."""
        return any(check.undecided for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "checks": [check.to_dict() for check in self.checks], "passed": self.passed}

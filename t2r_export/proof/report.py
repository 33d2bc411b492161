"""What a proof says: numbers, the bounds that they must not pass, and whether they all did not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One measured number and the bound that it must not pass."""

    name: str
    worst: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN does not pass


@dataclass
class Report:
    """What `verify` measured."""

    provider: str
    quantization: str
    steps: int
    same_checkpoint: bool
    checks: list[Check] = field(default_factory=list)
    first_greedy_difference: int | None = None
    greedy_agreement: float = 1.0  # share of predictions with the same greedy token
    greedy_bound: float = 1.0  # 1: the same at every step

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and self.greedy_passed

    @property
    def greedy_passed(self) -> bool:
        return self.first_greedy_difference is None or self.greedy_agreement >= self.greedy_bound != 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "quantization": self.quantization,
            "steps": self.steps,
            "same_checkpoint": self.same_checkpoint,
            "checks": [{**vars(check), "passed": check.passed} for check in self.checks],
            "first_greedy_difference": self.first_greedy_difference,
            "greedy_agreement": self.greedy_agreement,
            "greedy_bound": self.greedy_bound,
            "passed": self.passed,
        }

"""What a proof says: numbers, the bounds that they must not pass, and whether they all did not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from t2r_export.proof.tolerances import ROUNDING


@dataclass(frozen=True)
class Check:
    """One measured number and the bound that it must not pass."""

    name: str
    worst: float
    tolerance: float
    rounding: float | None = None  # the model's own in the same steps, where it was measured

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN does not pass

    @property
    def ill_conditioned(self) -> bool:
        """Whether the model's own rounding is so large that no graph of it can be told from another model's."""
        return self.rounding is not None and not ROUNDING * self.rounding <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "passed": self.passed}


@dataclass
class Report:
    """What `verify` measured."""

    provider: str
    quantization: str
    steps: int
    same_checkpoint: bool
    reference: str = "float32"  # the eager model's precision
    checks: list[Check] = field(default_factory=list)
    # the first step with another greedy token than the model's that is not a tie within twice the bound of logits
    first_greedy_mismatch: int | None = None
    greedy_agreement: float = 1.0  # share of predictions with the same greedy token
    greedy_bound: float = 1.0  # 1: the same at every step, but for ties

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and self.greedy_passed

    @property
    def greedy_passed(self) -> bool:
        if self.greedy_bound == 1:
            return self.first_greedy_mismatch is None
        return self.greedy_agreement >= self.greedy_bound  # NaN does not pass

    @property
    def ill_conditioned(self) -> bool:
        """Whether a check failed that the model's own float32 may have failed too."""
        return any(check.ill_conditioned and not check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "quantization": self.quantization,
            "steps": self.steps,
            "same_checkpoint": self.same_checkpoint,
            "reference": self.reference,
            "checks": [check.to_dict() for check in self.checks],
            "first_greedy_mismatch": self.first_greedy_mismatch,
            "greedy_agreement": self.greedy_agreement,
            "greedy_bound": self.greedy_bound,
            "passed": self.passed,
        }

"""How far a graph may be from the eager model: one table, by provider and quantization.

A tolerance is a promise, several times the worst value that was measured; docs/parity.md holds the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class Tolerance:
    """Bounds for a run of chained steps."""

    logits: float  # largest absolute difference
    state: float  # largest difference of a state, relative to that state's largest value


TOLERANCES: dict[tuple[str, str], Tolerance] = {
    ("cpu", "none"): Tolerance(logits=1e-4, state=1e-5),
}


def tolerance(provider: str, quantization: str) -> Tolerance:
    """The bounds for a provider and a quantization scheme.

    Raises:
        UserError: nobody has measured that pair; lists those that were.
    """
    if (provider, quantization) not in TOLERANCES:
        known = ", ".join(f"{p} with {q}" for p, q in TOLERANCES)
        raise UserError(
            f"a provider and quantization with a tolerance ({known})",
            f"{provider} with {quantization}",
            "choose one of those",
        )
    return TOLERANCES[provider, quantization]

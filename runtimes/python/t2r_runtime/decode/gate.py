"""A gate that sets the share of neighbours at each position: λ(h) = σ(w·h + b) of the hidden state h."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import is_number, numbers_of, require_int, require_value
from t2r_runtime.errors import UserError

Floats = NDArray[np.float64]
START = 0.25  # λ before the first step


class Gate:
    """λ(h) = σ(w·h + b), the gate of SPALM (Yogatama et al. 2021, arXiv 2102.02557) for a mixture of probabilities.

    SPALM gates vectors before the head. Here the gate replaces kNN-LM's constant λ.

    Args:
        weight: w (D,).
        bias: b.
    """

    def __init__(self, weight: ArrayLike, bias: float) -> None:
        self.weight = numbers_of(weight, "weights of a gate").astype(np.float64)
        require_value(is_number(bias) and np.isfinite(bias), "a finite number as bias", bias, "argument")
        self.bias = float(bias)
        if self.weight.ndim != 1 or not self.weight.size or not np.isfinite(self.weight).all():
            raise UserError("finite weights (D,) of a gate", f"{self.weight.shape}", "train it again", "argument")

    def log_shares(self, hidden: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Hidden states (N, D) → log λ and log(1 - λ), float64 (N,)."""
        scores = hidden.astype(np.float64) @ self.weight + self.bias
        return -np.logaddexp(0, -scores), -np.logaddexp(0, scores)

    @classmethod
    def fit(cls, hidden: ArrayLike, own: ArrayLike, near: ArrayLike, steps: int = 300, penalty: float = 1.0) -> Self:
        """The gate that maximizes Σ_t log(λ(h_t) p_kNN(y_t) + (1 - λ(h_t)) p_LM(y_t)) - penalty/2 · |w|².

        Each step is an EM step whose logistic regression is bounded by a quadratic (Böhning and Lindsay 1988): the sum
        never falls, and there is no step size. The penalty applies to w of h standardized to variance 1.

        Args:
            hidden: h at each position (N, D).
            own: log p_LM of the next token (N,).
            near: log p_kNN of the next token (N,); -inf where no neighbour has it.
            penalty: at least 0; the precision of a normal prior of each weight.

        Raises:
            UserError: shapes that differ, or values that are not finite.
        """
        require_int(steps, "steps", 0, "argument")
        require_value(is_number(penalty) and penalty >= 0, "a penalty of at least 0", penalty, "argument")
        h, p, q = (numbers_of(x, "states and log-probabilities").astype(np.float64) for x in (hidden, own, near))
        fits = h.ndim == 2 and h.size and p.shape == q.shape == h.shape[:1]
        if not fits or not np.isfinite(h).all() or not np.isfinite(p).all() or not (q < np.inf).all():
            received = f"{h.shape}, {p.shape} and {q.shape}, or numbers that are not finite"
            raise UserError("hidden (N, D), own (N,) and near (N,)", received, "pass one of each place", "argument")
        mean, spread = h.mean(0), np.maximum(h.std(0), 1e-6 * max(1.0, np.abs(h).max()))
        x = np.concatenate([(h - mean) / spread, np.ones((len(h), 1))], 1)
        ridge = np.append(np.full(h.shape[1], penalty), 0.0)
        inverse = np.linalg.pinv(x.T @ x / 4 + np.diag(ridge), hermitian=True)
        w = np.append(np.zeros(h.shape[1]), np.log(START / (1 - START)))
        for _ in range(steps):
            scores = x @ w
            shares = 1 / (1 + np.exp(-scores.clip(-700, 700)))
            chosen = 1 / (1 + np.exp((p - q - scores).clip(-700, 700)))  # posterior probability of the neighbours
            w += inverse @ (x.T @ (chosen - shares) - ridge * w)
        return cls(w[:-1] / spread, float(w[-1] - (w[:-1] / spread) @ mean))

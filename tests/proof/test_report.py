"""Verdicts of reports."""

from __future__ import annotations

import pytest

import small
from t2r_export.proof.checks import REDRAWN, Checks
from t2r_export.proof.report import Check, Report
from t2r_export.proof.tolerances import TOLERANCES


def test_greedy_tokens_must_agree() -> None:
    fine = [Check("logits", 0.0, 1e-4)]
    assert Report("cpu", "none", 9, True, checks=fine).passed
    assert not Report("cpu", "none", 9, True, checks=fine, first_greedy_mismatch=7).passed


@pytest.mark.parametrize("agreement, passed", [(0.9, True), (0.89, False), (float("nan"), False)])
def test_quantized_graph_greedy_bound(agreement: float, passed: bool) -> None:
    report = Report("cpu", "w8", 9, True, first_greedy_mismatch=7, greedy_agreement=agreement, greedy_bound=0.9)
    assert report.passed is passed
    assert report.to_dict()["greedy_agreement"] is agreement


@pytest.mark.parametrize("worst, passed", [(0.0, True), (1e-4, True), (1.1e-4, False), (float("nan"), False)])
def test_check(worst: float, passed: bool) -> None:
    assert Check("x", worst, 1e-4).passed is passed


OUTCOMES = {
    "passes": Check("x", 1e-5, 1e-4),
    "undecided": Check("x", 2e-3, 1e-3, 6e-4),  # no more than four times the model's own rounding
    "fails": Check("x", 3e-3, 1e-3, 6e-4),
    "NaN": Check("x", float("nan"), 1e-3, 6e-4),
}


@pytest.mark.parametrize(
    "outcomes, calls, last",
    [
        (["passes"], 1, "passes"),
        (["fails", "passes"], 1, "fails"),
        (["NaN", "passes"], 1, "NaN"),
        (["undecided", "passes"], 2, "passes"),
        (["undecided", "fails", "passes"], 2, "fails"),
        (["undecided"] * 9, 1 + REDRAWN, "undecided"),
    ],
)
def test_undecided_check_is_repeated(outcomes: list[str], calls: int, last: str) -> None:
    """A fault larger than the model's own rounding fails at once."""
    checks, following = Checks(small.model(), TOLERANCES["cpu", "none"], False), iter(outcomes)
    checks.made.append(OUTCOMES["fails"])  # of an earlier check
    checks.run(lambda to, second: to.made.extend((OUTCOMES[next(following)], second)), OUTCOMES["passes"])
    assert checks.redrawn == calls - 1
    assert checks.made == [OUTCOMES["fails"], OUTCOMES[last], OUTCOMES["passes"]]

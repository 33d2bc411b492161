"""Verdicts of reports."""

from __future__ import annotations

import pytest

from t2r_export.proof.report import Check, Report


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

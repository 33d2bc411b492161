"""The committed plan, benchmarks/plan.toml."""

from __future__ import annotations

import importlib.util

import pytest

import run
from comparison import batches, decode, engines, plan, servers, translators
from comparison.engines import parse
from comparison.plan import read_plan


def test_committed_plan_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement can start, and the page's placeholders match the tables."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(plan, "bench_decode", lambda made, note: made)
    monkeypatch.setattr(plan, "bench_batches", lambda made, note: made)
    forms, measurements = read_plan(run.HERE / "plan.toml")
    assert forms["fast"].startswith("t2r:")
    made = {m.file: m.prepare()(lambda _: None) for m in measurements if m.kind in ("decode", "batch")}
    assert isinstance(made["decode.json"], decode.Plan)
    assert isinstance(made["batch.json"], batches.BatchPlan)
    other = {"translate": translators.ENGINES, "serve": servers.ENGINES}
    for measurement in measurements:
        known = other.get(measurement.kind, engines.ENGINES)
        assert all(parse(text, known) for text in measurement.options.get("engines", ()))
        pages = ["serving.md"] if measurement.alone else ["performance.md", "record.md"]
        texts = [(run.HERE.parent / "docs" / page).read_text(encoding="utf-8") for page in pages]
        assert any(f"<!-- table {measurement.file} " in text for text in texts)
    assert {f"{form}:prefill=1" for form in forms.values()} <= set(made["decode.json"].engines)

"""Measuring: the arithmetic of ratios, and no speed for a graph that is not the model."""

from pathlib import Path

import numpy as np
import pytest

import small
from t2r_export import bench
from t2r_runtime.errors import CheckFailed, UserError


def test_the_ratio_is_of_medians_and_the_first_call_of_a_turn_does_not_count() -> None:
    now = [0.0]
    costs = {"a": iter([9.0, 2.0, 2.0, 50.0] * 3), "b": iter([9.0, 5.0, 5.0, 5.0] * 3)}

    def candidate(name: str):
        def call() -> None:
            now[0] += next(costs[name]) / 1e3

        return call

    a, b = bench.interleaved({"a": candidate("a"), "b": candidate("b")}, rounds=3, clock=lambda: now[0])
    assert a.milliseconds == pytest.approx(2.0)
    assert b.milliseconds == pytest.approx(5.0)
    assert (a.ratio, b.ratio) == (pytest.approx(1.0), pytest.approx(2.5))


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    bench.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=4, calls=2)
    turns = np.array(calls).reshape(-1, 3)
    assert (turns == turns[:, :1]).all()
    assert sorted(turns[:2, 0]) == ["a", "b"]
    assert len(turns) == 8


def test_no_speed_for_a_graph_that_is_another_model(tmp_path: Path) -> None:
    right, _ = small.graph(tmp_path / "graph.onnx")
    bench.require_parity(right, tmp_path / "graph.onnx")
    with pytest.raises(CheckFailed, match=r"no speed for graph.onnx, which is not the model: logits, absolute"):
        bench.require_parity(small.checkpoint(seed=1), tmp_path / "graph.onnx")


def test_an_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="gpt2-small, smollm-135m; received 'gpt5'"):
        bench.random_model("gpt5")

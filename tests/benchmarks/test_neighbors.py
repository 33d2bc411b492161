"""Shares of neighbours, measured by benchmarks/neighbors.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import neighbors


def test_shares_are_measured_on_one_text(data: Path, tmp_path: Path) -> None:
    options = argparse.Namespace(entries=40, fit=20, test=20, k=3, temperature=10.0, context=16)
    options.model = data / "checkpoints" / "stories260K"
    options.text = data / "text" / "tinystories.txt"
    made = neighbors.measured(options, tmp_path / "g.onnx")
    found = {name: float(nats) for name, nats in made.rows}
    assert list(found)[0] == "the model alone" and len(found) == len(neighbors.SHARES) + 1
    assert found["λ = 0.5"] > found["λ = 0.05"]  # with so few entries most neighbours do not predict the next token
    assert abs(found["a gate, λ = σ(w·h + b)"] - found["the model alone"]) < 0.5

"""The model's own rounding and widened bounds."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import small
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli.reports import parity_text
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.proof import rounding, tolerances
from t2r_export.proof.checks import REDRAWN
from t2r_export.proof.report import Check
from t2r_export.proof.rounding import own_rounding
from t2r_export.proof.side_by_side import Errors, Text
from t2r_export.proof.tolerances import LIMIT, ROUNDING, TOLERANCES, widened
from t2r_export.verify import verify

FIXED = TOLERANCES["cpu", "none"]


def text(made: Transformer, seed: int = 0) -> Text:
    return Text(small.states(made, seed=seed), list(small.ids(seed=seed).T))


def loud(factor: float) -> Transformer:
    """A model whose logits, and so their rounding, are `factor` times as large."""
    made = small.model()
    made.norm.weight.data *= factor
    return made


@pytest.mark.parametrize("name", ["learned", "rotary_keep", "hybrid", "lstm", "mixed"])
def test_rounding_is_small_and_positive(name: str) -> None:
    own = own_rounding(small.model(name), [text(small.model(name))])
    assert 1e-8 < own.logits < 1e-4
    assert 1e-8 < own.states < 1e-4


def test_rounding_grows_with_model() -> None:
    quiet, other = (own_rounding(made, [text(made)]) for made in (loud(1), loud(1000)))
    assert 300 < other.logits / quiet.logits < 3000
    assert other.states == quiet.states


def test_worst_rounding_over_texts() -> None:
    made = small.model("gated")
    one, other = (own_rounding(made, [text(made, seed)]) for seed in (0, 1))
    both = own_rounding(made, [text(made, 0), text(made, 1)])
    assert both.logits >= 0.3 * max(one.logits, other.logits), "other last digits, the same size"
    assert own_rounding(made, []) == Errors()


@pytest.mark.parametrize("name", ["gated", "softmax", "hybrid"])
def test_sequences_read_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large states are read one sequence at a time, with errors of the same size."""
    made, read = small.model(name), []
    of_text = rounding._of_text
    monkeypatch.setattr(rounding, "_of_text", lambda *given: read.append(given[2]) or of_text(*given))
    together = own_rounding(made, [text(made)])
    assert [len(part.ids[0]) for part in read] == [len(small.ids())]
    monkeypatch.setattr(rounding, "MAX_BYTES", 1)
    alone = own_rounding(made, [text(made)])
    assert [len(part.ids[0]) for part in read[1:]] == [1] * len(small.ids())
    assert 0.3 < alone.logits / together.logits < 3
    assert 0.3 < alone.states / together.states < 10, "relative to the largest value of one sequence, not of all"


@pytest.mark.parametrize("name", ["learned", "hybrid", "window_rotary", "delta", "lstm"])
def test_pieces_give_equal_logit_errors(name: str) -> None:
    made = small.model(name)
    whole, parts = (own_rounding(made, [text(made)], piece) for piece in (1, 3))
    assert parts.logits == pytest.approx(whole.logits, rel=1e-3)
    assert 0 < parts.states <= whole.states * (1 + 1e-3)
    assert own_rounding(made, [text(made)], small.T).states == pytest.approx(
        own_rounding(made, [text(made)], small.T + 1).states
    )


def test_rounding_changes_neither_model_nor_rng() -> None:
    made = small.model("gated")
    before, weights = made(small.ids()), {name: value.clone() for name, value in made.state_dict().items()}
    chance = torch.get_rng_state()
    first, again = (own_rounding(made, [text(made)]) for _ in range(2))
    assert first == again
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.equal(made(small.ids()), before)
    assert all(torch.equal(value, weights[name]) for name, value in made.state_dict().items())


def test_nan_is_kept() -> None:
    assert math.isnan(own_rounding(loud(math.nan), [text(loud(1))]).logits)


@pytest.mark.parametrize(
    "rounding, bound",
    [(0.0, 1e-4), (1e-4 / ROUNDING, 1e-4), (2e-4, 2e-4 * ROUNDING), (1.0, 1e-4 * LIMIT), (math.nan, 1e-4)],
)
def test_widened_bound(rounding: float, bound: float) -> None:
    assert widened(1e-4, rounding) == bound
    assert Check("logits", bound * 1.1, bound, rounding).undecided is (rounding == 1)
    assert not any(Check("logits", worst, bound, rounding).undecided for worst in (bound, 5.0, math.nan))
    assert not Check("logits", bound * 1.1, bound).undecided


@pytest.mark.parametrize("always", [False, True])
def test_rounding_is_measured_above_bound(always: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", "rotary_keep")
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=9, rounding=always)
    assert {check.rounding is not None for check in proof.checks[:-1]} == {always}
    first = proof.checks[0]
    narrow = dataclasses.replace(FIXED, logits=first.worst * 0.9)
    monkeypatch.setitem(TOLERANCES, ("cpu", "none"), narrow)
    monkeypatch.setattr(tolerances, "LIMIT", 1e6)  # another test checks the limit: one error may be small by chance
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=9, rounding=always)
    first = proof.checks[0]
    assert first.rounding is not None
    assert narrow.logits < first.worst <= first.tolerance == widened(narrow.logits, first.rounding)
    assert first.passed and not proof.redrawn
    assert f"{first.rounding:.1e}" in parity_text(proof)


def test_ill_conditioned_model_is_reported(tmp_path: Path) -> None:
    """The graph is right, but rounding hides it in all texts."""
    made = loud(1e6)
    checkpoint = Checkpoint(made.config, made, None, {}, "0" * 64)
    export(checkpoint, tmp_path / "g.onnx")
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=9)
    assert not proof.passed and proof.undecided
    assert proof.checks[0].tolerance == LIMIT * FIXED.logits
    assert proof.redrawn >= 2 * REDRAWN  # chained, and from the start
    text = parity_text(proof)
    assert f"the model's own rounding hid the error: {proof.redrawn}\nThe model is ill-conditioned: " in text


def test_fault_is_not_ill_conditioned(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    proof = verify(small.checkpoint(seed=1), tmp_path / "g.onnx", steps=3)
    assert not proof.passed and not proof.undecided
    assert "ill-conditioned" not in parity_text(proof)

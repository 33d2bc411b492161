"""The page of proved models matches the measurements and has every family; its program detects a wrong weight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from checkpoints.importers import proved
from checkpoints.importers.peers import TOLERANCE
from t2r_export.model.transformer import Transformer


def test_the_page_is_that_of_the_measurements() -> None:
    """python tests/checkpoints/importers/proved.py"""
    kept = json.loads(proved.KEPT.read_text())
    assert kept["models"].keys() == proved.FAMILIES.keys()
    assert proved.PAGE.read_text(encoding="utf-8") == proved.page(kept)


@pytest.mark.parametrize("column", ["eager", "prompt", "step"])
def test_every_model_is_within_the_tolerance(column: str) -> None:
    rows = json.loads(proved.KEPT.read_text())["models"]
    assert not {name: row[column] for name, row in rows.items() if not row[column] < TOLERANCE}


def test_a_wrong_weight_is_seen(tmp_path: Path) -> None:
    theirs, ours = proved.FAMILIES["gpt2"].imported(tmp_path)
    assert max(proved.from_full_forward(theirs, ours, tmp_path).values()) < TOLERANCE
    assert isinstance(ours.model, Transformer)
    with torch.no_grad():
        next(ours.model.parameters())[3] += 0.01
    assert min(proved.from_full_forward(theirs, ours, tmp_path).values()) > TOLERANCE

"""The measured errors cover every family and are within tolerance; the program that measures detects a wrong weight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from checkpoints.importers import proved
from checkpoints.importers.key_values import IMPORTERS, TRANSLATORS
from checkpoints.importers.peers import TOLERANCE
from families import Family
from t2r_export.model.transformer import Transformer


def test_every_model_was_measured() -> None:
    """python tests/checkpoints/importers/proved.py"""
    kept = json.loads(proved.KEPT.read_text())
    assert kept["models"].keys() == proved.FAMILIES.keys()
    assert kept["settings"] == json.loads(json.dumps(proved.SETTINGS))


def test_every_family_of_transformers_has_a_model() -> None:
    models = [one for one in proved.FAMILIES.values() if isinstance(one, Family)]
    types = {getattr(transformers, f"{one.config or one.name}Config").model_type for one in models}
    assert IMPORTERS.keys() - TRANSLATORS - types == set()


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

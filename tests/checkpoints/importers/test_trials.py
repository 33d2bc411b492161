"""The program of random configs: its draws, and its detection of a folder that is read as another model."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from checkpoints.importers import trials
from t2r_export.checkpoints import checkpoint


def test_a_case_is_its_number_and_the_seed() -> None:
    one, again, other = (trials.drawn("llama", random.Random(seed)) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("family", ["qwen3_5_text", "mamba2"])
def test_every_key_that_is_read_is_drawn(family: str) -> None:
    draws = [trials.drawn(family, random.Random(seed)) for seed in range(60)]
    for key in trials.IMPORTERS[family].keys.read.keys() - trials.NOT_CHANGED:
        assert len({str(data.get(key)) for data in draws}) > 1, key


def test_a_folder_that_is_read_as_another_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [number for number in range(6) if trials.tried("arcee", 0, number)[0] == trials.SAME]
    assert numbers
    right = checkpoint.load

    def wrong(folder: Any) -> Any:
        found = right(folder)
        changed = replace(found.config, logit_scale=1.01 * found.config.logit_scale)
        model = type(found.model)(changed).eval()
        model.load_state_dict(found.model.state_dict())
        return replace(found, model=model)

    monkeypatch.setattr(checkpoint, "load", wrong)
    with torch.no_grad():
        assert [trials.tried("arcee", 0, number)[0] for number in numbers] == [trials.WRONG] * len(numbers)

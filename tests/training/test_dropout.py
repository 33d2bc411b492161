"""Dropout: masks, affected parts, and dependence on the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import small
import texts
from runs import changed, ended, entry, resumed, stop_at
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.training.dropout import dropped
from t2r_runtime.errors import UserError

CHANCE = 0.25


def logits(name: str, chance: float, step: int = 3, seed: int = 0) -> torch.Tensor:
    model = small.model(name)
    ids = small.ids(batch=2)
    with torch.no_grad(), dropped(model, chance, seed, step):
        if model.encoder is None:
            return model(ids)
        source = torch.tensor([[3, 1, 4], [5, 2, 0]])
        return model.prefill(ids, model.start(source, torch.tensor([3, 2])))[0]


@pytest.mark.parametrize("name", ["hybrid", "translator_softmax"])
def test_mask_is_function_of_seed_and_step(name: str) -> None:
    found = logits(name, CHANCE)
    assert torch.equal(found, logits(name, CHANCE))
    assert torch.equal(logits(name, 0.0), logits(name, 0.0, step=9))
    others = (logits(name, 0.0), logits(name, CHANCE, step=4), logits(name, CHANCE, seed=1))
    assert all(not torch.equal(found, other) for other in others)


def test_dropout_on_all_parts_with_scaling() -> None:
    model = small.model("translator_softmax")
    assert model.encoder is not None
    blocks = [*model.encoder.blocks, *model.blocks]
    parts = [part for block in blocks for part in block.parts]
    assert len(parts) == 2 * 2 + 2 * 3
    plain, seen = dict[int, torch.Tensor](), dict[int, torch.Tensor]()

    def keep(into: dict[int, torch.Tensor]) -> Callable[..., None]:
        return lambda part, inputs, output: into.update({id(part): output[0] if type(output) is tuple else output})

    hooks = [part.register_forward_hook(keep(plain)) for part in parts]
    with torch.no_grad(), dropped(model, CHANCE, 0, 0):
        hooks += [part.register_forward_hook(keep(seen)) for part in parts]
        model.prefill(small.ids(batch=2), model.start(torch.tensor([[3, 1, 4], [5, 2, 0]]), torch.tensor([3, 2])))
    shares = []
    for part in parts:
        before, after = plain[id(part)], seen[id(part)]
        kept = after != 0
        torch.testing.assert_close(after[kept], before[kept] / (1 - CHANCE))
        shares.append(float(kept.float().mean()))
    assert sum(shares) / len(shares) == pytest.approx(1 - CHANCE, abs=0.05)
    for hook in hooks:
        hook.remove()
    assert not any(part._forward_hooks for part in parts)


@pytest.mark.slow
def test_resume_with_dropout_is_bit_identical(tmp_path: Path) -> None:
    config = texts.run(tmp_path, parse_plan("task", "12", "0.01"), dropout=0.1)
    whole = ended(config)
    stop_at(config, 5)
    assert resumed(config) == whole
    without = dataclasses.replace(config, output=tmp_path / "without.pt", dropout=0.0)
    finetune(without)
    assert entry(config)["dropout"] == 0.1 and "dropout" not in entry(without)
    assert "embedding.weight" in changed(config.output, without.output)


@pytest.mark.parametrize("chance", [-0.1, 1.0, float("nan")])
def test_invalid_probability_is_refused(chance: float) -> None:
    with pytest.raises(UserError, match="dropout to be a number above 0 and below 1"):
        FinetuneConfig(model=Path("m"), output=Path("o"), dropout=chance)

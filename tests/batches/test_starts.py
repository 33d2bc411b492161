"""Random start positions: values, defaults, and their effect on feature maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import small
import texts
from runs import changed, ended, entry, resumed, stop_at, usual
from t2r_export.batches.batch import window_batch
from t2r_export.batches.starts import check_starts, draw_starts, usual_starts
from t2r_export.config.finetune import START_POSITIONS, FinetuneConfig
from t2r_export.config.mixers import LinearConfig, MixerConfig, WindowConfig
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert
from t2r_export.finetune import finetune
from t2r_export.training.layerwise import Align, Transfer
from t2r_export.training.stages import Distill, LossWeights, Stage, Task
from t2r_runtime.errors import UserError

START = torch.tensor([5, 4000, 77], dtype=torch.int32)


def windows() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(texts.TEACHER.vocab_size, (len(START), small.T + 1), generator=generator)


def loss(stage: Stage, start: torch.Tensor | None) -> float:
    return float(stage(window_batch(windows(), start)).detach())


def test_starts_are_function_of_seed_and_step() -> None:
    drawn = torch.stack([draw_starts(4096, 64, 0, step) for step in range(50)])
    assert drawn.dtype == torch.int32
    assert 0 <= int(drawn.min()) < 20 and 4076 < int(drawn.max()) < 4096
    assert float(drawn.float().mean()) == pytest.approx(2047.5, abs=100)
    assert len({tuple(row) for row in drawn.tolist()}) == 50
    assert torch.equal(draw_starts(4096, 64, 0, 7), drawn[7])
    assert not torch.equal(draw_starts(4096, 64, 1, 7), drawn[7])
    assert set(draw_starts(1, 9, 0, 0).tolist()) == {0}


@pytest.mark.parametrize("kind", [Transfer, Align, Distill, Task])
def test_start_positions_affect_rotated_feature_maps(kind: type[Stage]) -> None:
    teacher = small.model(texts.TEACHER)
    keep = kind(convert(teacher, LinearConfig(small.K)), teacher)
    assert loss(keep, START) != pytest.approx(loss(keep, None), rel=1e-3)
    assert loss(keep, START * 0) == loss(keep, None)
    after = kind(convert(teacher, LinearConfig(6, positions="after")), teacher)
    assert loss(after, START) == pytest.approx(loss(after, None), rel=1e-4)


def test_start_positions_do_not_affect_softmax() -> None:
    teacher = small.model(texts.TEACHER)
    student = Distill(small.model(texts.TEACHER), teacher, LossWeights(hidden=1.0))
    assert loss(student, START) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("gated_rotary", START_POSITIONS),
        ("rotary_keep", 0),
        ("delta_rotary", 0),  # one layer has no decay
        ("rotary_drop", 0),
        ("rotary_after", 0),
        ("window_rotary", 0),
        ("hybrid_sum", 0),
        ("sinusoidal", 0),
        ("learned", 0),
        ("average", 0),
        ("lstm", 0),
    ],
)
def test_default_start_positions(name: str, expected: int) -> None:
    assert usual_starts(small.model(name)) == expected


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("window_rotary", {}, "0 start positions; received 9, and layers whose states depend on all earlier positions"),
        ("average", {}, "0 start positions; received 9, and layers whose states depend on all earlier positions"),
        ("lstm", {}, "0 start positions for a student without positions; received 9"),
        ("learned", {"length": 33}, "start positions of at most 8, so that windows end within the learned table; rec"),
        (
            "sinusoidal",
            {},
            "hidden 0 for start positions with sinusoidal positions",
        ),
    ],
)
def test_unsupported_start_positions_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    assert small.GPT2.max_positions == 40
    path = Path("x.pt")
    options: dict[str, Any] = {"length": 16, "start_positions": 9, **changes}
    config = FinetuneConfig(model=path, output=path, data=(), plan=parse_plan("distill", "1"), **options)
    with pytest.raises(UserError) as caught:
        check_starts(config, small.model(name))
    assert message in str(caught.value)
    check_starts(dataclasses.replace(config, start_positions=0), small.model(name))
    if name in ("learned", "sinusoidal"):
        check_starts(dataclasses.replace(config, start_positions=8, hidden=0.0), small.model(name))


@pytest.mark.parametrize("layer", [LinearConfig(small.K), LinearConfig(small.K, update_rule="gated", gate="data")])
def test_random_starts_help_at_later_positions(layer: MixerConfig) -> None:
    """A student trained at far positions matches its teacher better there than one trained at 0."""
    teacher = small.model(texts.TEACHER)
    far = torch.full((len(START),), 1000, dtype=torch.int32)
    losses = []
    for starts in (None, far):
        stage = Transfer(convert(teacher, layer), teacher)
        optimizer = torch.optim.Adam(stage.trainable().values(), lr=0.03)
        for _ in range(30):
            optimizer.zero_grad()
            stage(window_batch(windows(), starts)).backward()
            optimizer.step()
        losses.append(loss(stage, far))
    assert losses[1] < 0.9 * losses[0]


def test_other_layers_do_not_affect_default() -> None:
    assert usual_starts(small.model(small.with_layers(small.LLAMA, small.SOFTMAX, small.GATED[0]))) == START_POSITIONS
    assert usual_starts(small.model(small.with_layers(small.LLAMA, small.SOFTMAX, small.SOFTMAX))) == 0


@pytest.mark.slow
def test_start_positions_are_part_of_identity(tmp_path: Path) -> None:
    """A gated student of a rotary model uses them by default, also after a stop; another number is another model."""
    config = usual(tmp_path)
    texts.write_student(config.model, mixer=LinearConfig(small.K, update_rule="gated", gate="data"))
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill", "3,4", "0.01"))
    whole = ended(config)
    stop_at(config, 5)
    assert resumed(config) == whole
    assert entry(config)["start_positions"] == 4096
    other = dataclasses.replace(config, output=tmp_path / "other.pt", start_positions=0)
    finetune(other)
    assert entry(other)["start_positions"] == 0
    assert changed(config.output, other.output)
    window = texts.write_student(tmp_path / "window.pt", mixer=WindowConfig(5, 1))
    other = dataclasses.replace(other, model=window, plan=parse_plan("distill", "1"), start_positions=9, force=True)
    with pytest.raises(UserError, match="0 start positions; received 9, and layers whose states depend on"):
        finetune(other)

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import STAGES, StagePlan, parse_plan
from t2r_runtime.errors import UserError


def config(**changes: Any) -> FinetuneConfig:
    return FinetuneConfig(model=Path("model.pt"), output=Path("out/tuned.pt"), data=(Path("text"),), **changes)


def test_a_plan_is_read_from_lists_with_commas() -> None:
    assert parse_plan("transfer, task", "3,0", "0.01,2e-3") == (
        StagePlan("transfer", 3, 0.01),
        StagePlan("task", 0, 2e-3),
    )
    assert parse_plan("distill") == (StagePlan("distill", STAGES["distill"].steps, None),)


def test_default_learning_rates_scale_with_width() -> None:
    plan = config(plan=parse_plan("transfer,distill")).for_model(128, None).plan
    assert [stage.learning_rate for stage in plan] == [
        STAGES["transfer"].learning_rate,
        STAGES["distill"].learning_rate / 2,
    ]
    asked = config(plan=parse_plan("transfer,distill", None, "0.1,0.2"))
    assert asked.for_model(128, None) == dataclasses.replace(asked, length=256)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("transfer,polish",), "stage to be one of transfer, align, distill, round, task; received 'polish'"),
        (
            ("transfer,task", "3,4,5"),
            "2 steps, one for each of transfer, task, or one for all; received '3,4,5'",
        ),
        (("task", "three"), "steps as numbers separated by commas; received 'three'"),
        (("task", "-1"), "steps of task to be an integer from 0 to 1000000000; received -1"),
        (("task", "1", "1e-3;2"), "learning rates as numbers"),
        (("task", "1", "0"), "the learning rate of task to be a number above 0 and below 10; received 0.0"),
        (("task", "1", "nan"), "the learning rate of task to be a number above 0 and below 10; received nan"),
    ],
)
def test_messages_about_plans(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_plan(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"plan": parse_plan("task", "0")}, "at least one step of one stage"),
        ({"plan": ()}, "at least one step of one stage"),
        ({"length": 0}, "length to be an integer from 1 to 1000000000; received 0"),
        ({"batch": 2.5}, "batch to be an integer; received 2.5; correct batch"),
        ({"kl_top": -1}, "kl_top to be an integer from 0"),
        ({"start_positions": -1}, "start_positions to be an integer from 0"),
        ({"start_positions": 1 << 31}, "start_positions to be an integer from 0 to 1073741824"),
        ({"seed": -1}, "seed to be an integer from 0"),
        ({"valid_share": 1.0}, "valid_share to be a number above 0 and below 1; received 1.0"),
        ({"test_share": 0}, "test_share to be a number above 0 and below 1; received 0"),
        (
            {"test_share": 0.95},
            "shares of valid and test below 1 together; received 0.05 + 0",
        ),
        ({"clip": 0}, "clip to be a number above 0; received 0"),
        ({"warmup": 1.5}, "warmup to be a number from 0 to 1; received 1.5"),
        ({"hidden": 10**400}, "hidden to be a number from 0; received 1000"),
        ({"hidden": -1}, "hidden to be a number from 0; received -1"),
        ({"weight_decay": -0.1}, "weight_decay to be a number from 0; received -0.1"),
        ({"precision": "fp8"}, "precision to be one of auto, float32, bf16; received 'fp8'"),
        ({"device": "tpu"}, "device to be one of auto, cpu, cuda; received 'tpu'"),
        ({"checkpoint_every": 0}, "checkpoint_every to be an integer from 1"),
    ],
)
def test_messages_about_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config(**changes)
    assert message in str(caught.value)


def test_run_files() -> None:
    assert config().state_path == Path("out/tuned.pt.training")
    assert config().log_path == Path("out/tuned.pt.jsonl")
    of_root = dataclasses.replace(config(), output=Path("/"))  # refused only when outputs are checked
    assert of_root.state_path == Path("/.training")
    assert config(log=Path("elsewhere")).log_path == Path("elsewhere")


def test_recipe_contains_result_options() -> None:
    plan = parse_plan("transfer,distill,task", "3,0,5", "0.1,0.1,0.2")
    recipe = config(plan=plan, seed=4, checkpoint_every=7).recipe()
    assert recipe["stages"] == [
        {"stage": "transfer", "steps": 3, "learning_rate": 0.1},
        {"stage": "task", "steps": 5, "learning_rate": 0.2},
    ]
    assert recipe["seed"] == 4
    assert "checkpoint_every" not in recipe


def test_options_are_known_without_torch() -> None:
    program = "import sys, t2r_export.config.finetune; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


@pytest.mark.parametrize(
    "options, share", [({"batch": 4}, 1), ({"batch": 3}, 0.75), ({"batch": 4, "length": 32}, 0.125)]
)
def test_default_learning_rates_scale_with_small_batches(options: dict[str, int], share: float) -> None:
    plan = config(plan=parse_plan("transfer,distill,task"), **options).for_model(64, None).plan
    usual = [STAGES[name].learning_rate for name in ("transfer", "distill", "task")]
    assert [stage.learning_rate for stage in plan] == [usual[0], usual[1] * share, usual[2] * share]

"""Finetuning stages with their defaults, and the plan of a run. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from t2r_export.config.options import between
from t2r_export.config.validation import choice, size
from t2r_runtime.errors import UserError

MAX_STEPS = 10**9
WIDTH, TOKENS = 64, 1024  # width and tokens per step for which the learning rates are


@dataclass(frozen=True)
class StageKind:
    """A finetuning stage: class, defaults and requirements."""

    stage: str  # "module:Class", a t2r_export.training.stages.Stage
    steps: int
    learning_rate: float  # peak, for WIDTH and TOKENS
    scaled: bool = True  # scale the learning rate, see `StagePlan.for_model`
    needs_teacher: bool = True
    takes_lora: bool = False  # can train adapters only
    drops: bool = False  # supports dropout


# The defaults were tuned on stories260K (width 64), with 4 windows of 256 tokens. Feature maps read single heads, so
# the learning rate of transfer is independent of the width; it serves 32 tokens per step too.
STAGES = {
    "transfer": StageKind("t2r_export.training.layerwise:Transfer", 300, 1e-2, scaled=False),
    "align": StageKind("t2r_export.training.layerwise:Align", 300, 1e-2),
    "distill": StageKind("t2r_export.training.stages:Distill", 3000, 4e-3, takes_lora=True, drops=True),
    "round": StageKind("t2r_export.training.stages:Round", 500, 1e-3),
    "task": StageKind("t2r_export.training.stages:Task", 1000, 1e-3, needs_teacher=False, takes_lora=True, drops=True),
}
USUAL_STAGES = "transfer,distill"  # default; stages without trainable weights are skipped


@dataclass(frozen=True)
class StagePlan:
    """One stage of a run."""

    stage: str
    steps: int  # 0 skips the stage
    learning_rate: float | None  # peak; None: the stage's default for the model's width
    optional: bool = False  # skip the stage if it has no weights to train; otherwise that is an error

    def __post_init__(self) -> None:
        choice("stage", self.stage, tuple(STAGES))
        size(f"steps of {self.stage}", self.steps, MAX_STEPS, least=0)
        if self.learning_rate is not None:
            between(f"the learning rate of {self.stage}", self.learning_rate, 0, 10)

    @property
    def peak(self) -> float:
        """The peak learning rate, after `for_model`."""
        assert self.learning_rate is not None
        return self.learning_rate

    def for_model(self, width: int, tokens: int) -> StagePlan:
        """The plan with its own learning rate, or the default for a width and a number of tokens per step.

        Adam's rate scales as 1 / width (Yang et al. 2022, arXiv 2203.03466). Below TOKENS it scales as the number of
        tokens: gradients of few tokens are mostly noise, and a rate for many makes a student worse.
        """
        if self.learning_rate is not None:
            return self
        default = STAGES[self.stage]
        scale = WIDTH / width * min(1.0, tokens / TOKENS) if default.scaled else 1.0
        return dataclasses.replace(self, learning_rate=default.learning_rate * scale)


def parse_plan(
    stages: str | None = None, steps: str | None = None, learning_rates: str | None = None
) -> tuple[StagePlan, ...]:
    """Parse `transfer,distill`, `300,1500`, `1e-2,2e-3`. A single number applies to all stages; None selects defaults.

    Default stages are optional.

    Raises:
        UserError: an unknown stage, or an invalid number or count of numbers.
    """
    names = [name.strip() for name in (USUAL_STAGES if stages is None else stages).split(",")]
    for name in names:
        choice("stage", name, tuple(STAGES))
    counts = _numbers("steps", steps, int, names) or [STAGES[name].steps for name in names]
    rates = _numbers("learning rates", learning_rates, float, names) or [None] * len(names)
    return tuple(StagePlan(*row, stages is None) for row in zip(names, counts, rates, strict=True))


def _numbers(what: str, text: str | None, kind: type, names: list[str]) -> list[Any]:
    if text is None:
        return []
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{what} as numbers separated by commas", repr(text), f"correct the {what}") from None
    if len(numbers) == 1:
        numbers *= len(names)
    if len(numbers) != len(names):
        expected = f"{len(names)} {what}, one for each of {', '.join(names)}, or one for all"
        raise UserError(expected, repr(text), f"correct the {what}")
    return numbers

"""The stages of finetuning: what each needs and its defaults, and the plan of a run. Readable without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from t2r_export.config.options import between
from t2r_export.config.validation import choice, size
from t2r_runtime.errors import UserError

MAX_STEPS = 1 << 40


@dataclass(frozen=True)
class StageKind:
    """A stage of finetuning: its class, its defaults, and what it needs."""

    stage: str  # "module:Class" of its t2r_export.training.stages.Stage
    steps: int
    learning_rate: float  # the peak, for a model of width 64
    scaled: bool = True  # by 64 / width, as Adam on a layer's matrices wants it (Yang et al. 2022, arXiv 2203.03466)
    needs_teacher: bool = True
    takes_lora: bool = False  # trains all weights, or adapters where the student has them
    drops: bool = False  # may drop numbers on the way


# All stages by name. The figures were found on stories260K, whose width is 64; a feature map's inputs are a head's, so
# the learning rate of transfer does not depend on the width.
STAGES = {
    "transfer": StageKind("t2r_export.training.layerwise:Transfer", 300, 1e-2, scaled=False),
    "align": StageKind("t2r_export.training.layerwise:Align", 300, 1e-2),
    "distill": StageKind("t2r_export.training.stages:Distill", 3000, 4e-3, takes_lora=True, drops=True),
    "round": StageKind("t2r_export.training.stages:Round", 500, 1e-3),
    "task": StageKind("t2r_export.training.stages:Task", 1000, 1e-3, needs_teacher=False, takes_lora=True, drops=True),
}
USUAL_STAGES = "transfer,distill"  # where nobody says which; without those that have nothing to train in a student


@dataclass(frozen=True)
class StagePlan:
    """One stage of a run."""

    stage: str
    steps: int  # 0 leaves the stage out
    learning_rate: float | None  # the peak; None: the stage's default for the model's width
    optional: bool = False  # left out where it has nothing to train in the student, which is an error otherwise

    def __post_init__(self) -> None:
        choice("stage", self.stage, tuple(STAGES))
        size(f"steps of {self.stage}", self.steps, MAX_STEPS, least=0)
        if self.learning_rate is not None:
            between(f"the learning rate of {self.stage}", self.learning_rate, 0, 10)

    @property
    def peak(self) -> float:
        """The learning rate, of a plan `for_width`."""
        assert self.learning_rate is not None
        return self.learning_rate

    def for_width(self, width: int) -> StagePlan:
        """The plan with a learning rate: its own, or the default for this width."""
        if self.learning_rate is not None:
            return self
        default = STAGES[self.stage]
        return dataclasses.replace(self, learning_rate=default.learning_rate * (64 / width if default.scaled else 1))


def parse_plan(
    stages: str | None = None, steps: str | None = None, learning_rates: str | None = None
) -> tuple[StagePlan, ...]:
    """`transfer,distill`, `300,1500`, `1e-2,2e-3` -> a plan; one number is for all stages, none is their defaults.

    Without stages, the usual ones, which are optional.
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
        raise UserError(
            f"{len(names)} {what}, one for each of {', '.join(names)}, or one for all",
            repr(text),
            f"correct the {what}",
        )
    return numbers

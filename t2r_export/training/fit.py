"""Options of a run that depend on the machine: how many steps, in which parts, and how often the state is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from t2r_export.config.finetune import EVAL_TOKENS, LEAST_EVAL_TOKENS, FinetuneConfig
from t2r_export.training.plan import StagePlanned

SAVED = 600  # seconds of training between saved states, at most
EVALUATED = 10  # training tokens per test token of a report
REPORTS = 3  # of the teacher, and of the student before and after
# a step costs as much as this many evaluations of its tokens: the teacher's, the student's, and twice for its gradient
STEP = 4
PROGRAM = 400_000_000  # bytes beside the tensors


@dataclass(frozen=True)
class Fit:
    """A run that fits; `seconds`, `memory` and `tokens` are estimates."""

    steps: dict[str, int]  # by stage
    left_out: int  # steps of the plan that the time has no room for
    tokens: int  # predicted in training
    seconds: float  # of training and its reports
    accumulate: int
    memory: int  # bytes at the peak, the program included
    eval_tokens: int
    checkpoint_every: int


def fit(config: FinetuneConfig, needs: Sequence[StagePlanned], hours: float | None, available: int | None) -> Fit:
    """Fit a run into a time, by the same share of all stages' steps, and into a memory, by smaller parts of a batch.

    Args:
        needs: of the steps of `config` without accumulation.
        hours: longest duration; None: all steps.
        available: bytes of memory; None: unknown.
    """
    accumulate = config.accumulate
    while available is not None and accumulate < config.batch and _bytes(needs, accumulate) > available:
        accumulate *= 2
    total = sum(each.seconds for each in needs)
    share = 1.0 if hours is None else min(1.0, hours * 3600 / (total * (1 + REPORTS / EVALUATED / STEP)))
    steps = {each.stage: max(1, int(each.steps * share)) for each in needs}
    tokens = sum(each.tokens * steps[each.stage] // each.steps for each in needs)
    seconds = sum(each.seconds * steps[each.stage] / each.steps for each in needs)
    eval_tokens = max(LEAST_EVAL_TOKENS, min(EVAL_TOKENS, tokens // EVALUATED))
    slowest = max(each.seconds / each.steps for each in needs)
    return Fit(
        steps=steps,
        left_out=sum(each.steps - steps[each.stage] for each in needs),
        tokens=tokens,
        seconds=seconds + REPORTS * eval_tokens * seconds / tokens / STEP,
        accumulate=accumulate,
        memory=_bytes(needs, accumulate),
        eval_tokens=eval_tokens,
        checkpoint_every=max(1, min(config.checkpoint_every, int(SAVED / slowest))),
    )


def _bytes(needs: Sequence[StagePlanned], accumulate: int) -> int:
    """Peak bytes of the stage that needs most, whose activations are those of a part of the batch."""
    tensors = max(each.bytes - each.memory["activations"] * (accumulate - 1) // accumulate for each in needs)
    return PROGRAM + tensors

"""Finetune a converted model to match its teacher.

All stages except `task` require the teacher. A complete run writes the trained model with its provenance; an incomplete
run leaves a training state to resume from.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.untrained import marked, untrained
from t2r_export.checkpoints.weights import compare
from t2r_export.config.finetune import FAR_SHARES, FinetuneConfig
from t2r_export.config.options import options
from t2r_export.config.stages import STAGES
from t2r_export.errors import CheckFailed
from t2r_export.fold import fold
from t2r_export.model.device import choose_device
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import Evaluation, evaluate
from t2r_export.training import lora
from t2r_export.training.best import Kept, put_aside
from t2r_export.training.inputs import find_inputs
from t2r_export.training.log import TrainingLog
from t2r_export.training.memory import freed_memory_kept
from t2r_export.training.plan import StagePlanned, planned
from t2r_export.training.stages import Stage
from t2r_export.training.start import start
from t2r_export.training.state import TrainingState, check_identity, damaged, load_state
from t2r_export.training.straight_through import attach, settled
from t2r_export.training.trainer import Trainer
from t2r_runtime.errors import UserError
from t2r_runtime.files import locked


@dataclass(frozen=True)
class FinetuneReport:
    """Result of a run: teacher and student on the test part, which training never reads."""

    output: Path
    teacher: Evaluation | None
    before: Evaluation
    after: Evaluation
    kept: tuple[Kept, ...]  # per stage; empty if the run was already complete
    tokens: int  # trained on, over all stages
    seconds: float  # of this process, including evaluation


def finetune(config: FinetuneConfig) -> FinetuneReport:
    """Train `config.model` as planned and write `config.output`.

    With `resume`, a complete run is not trained again; its report is returned.

    Raises:
        UserError: an unusable input, an output that may not be written, an unfinished or running run with the same
            output, or a training state of another run.
        CheckFailed: the loss is not finite.
        KeyboardInterrupt: Ctrl-C, after the state was saved.
    """
    config.check_files()
    accelerator = _accelerator(config)
    with locked(config.output, wait=False) if accelerator.is_main_process else contextlib.nullcontext():
        return _finetune(config, accelerator)


def plan(config: FinetuneConfig, student: Checkpoint | None = None) -> list[StagePlanned]:
    """Estimated needs of each stage of the run on one device. Writes only tokenized text to the cache.

    Args:
        student: the model to train, whose weights may change; None loads `config.model`.

    Raises:
        UserError: an unusable input.
    """
    if student is None:
        config.check_inputs()
    loaded = student or checkpoint.load(config.model)
    loaded.model.require_tokens("to finetune on a text")
    inputs = find_inputs(config, loaded, 1)
    device = choose_device(config.device)
    model = _rounded(loaded.model, inputs.config).to(device)
    teacher = None if inputs.teacher is None else inputs.teacher.to(device)
    return planned(inputs.config, model, teacher, inputs.batches)


def _finetune(config: FinetuneConfig, accelerator: Any) -> FinetuneReport:
    started = time.monotonic()
    main = accelerator.is_main_process
    loaded = checkpoint.load(config.model)
    loaded.model.require_tokens("to finetune on a text")
    inputs = find_inputs(config, loaded, accelerator.num_processes)
    config, teacher, batches = inputs.config, inputs.teacher, inputs.batches
    if config.may_be_complete and (done := _finished(config, inputs.identity)) is not None:
        TrainingLog(None, main).message(f"this run is complete: {config.output}")
        return _report(config.output, done, [], started)
    student = _rounded(loaded.model, config)
    with TrainingLog(config.log_path, main) as log:
        lines = [*(f"note: {line}" for line in loaded.notes), *inputs.notes]
        if config.resume and not config.state_path.exists():
            lines.append(f"note: nothing to resume at {config.output}: training begins")
        for line in lines:
            log.message(line)
        fresh = not config.state_path.exists()
        state = _start(config, inputs.identity, student)
        accelerator.wait_for_everyone()  # all processes have checked for a state before one writes it
        student.to(accelerator.device)
        if teacher is not None:
            teacher.to(accelerator.device)
        if fresh and teacher is not None:
            start(student, teacher, batches(0).to(accelerator.device))
        trainer = Trainer(config, student, teacher, batches, accelerator, log, state)
        log.record(event="start", stage=state.stage, step=state.step, **config.recipe())
        if main and not state.measured:
            for name, model in (("teacher", teacher), ("student", student)):
                if model is not None:
                    began = time.monotonic()
                    found = evaluate(model, batches.test)
                    state.measured |= {name: found.nats, f"{name}_error": found.standard_error}
                    log.end_seconds = time.monotonic() - began  # the student is measured again at the end
            if teacher is not None:  # reference for the student's validations
                state.measured["teacher_valid"] = evaluate(teacher, trainer.validation).nats
        with freed_memory_kept():
            trainer.run()
        unknown = {"tokens": 0, "length": config.window, "student": math.nan, "finetuned": math.nan}
        done = {"tokens": state.tokens, "evaluation": unknown}  # in processes other than the main one
        if main:
            if config.rounding is not None:
                student = settled(student)
            after = evaluate(student, batches.test)
            if not math.isfinite(after.nats):
                raise CheckFailed(f"the trained model's loss is {after.nats}; {config.state_path} keeps its weights")
            parts = _left(loaded, state, student, teacher)
            done = _write(config, loaded, student, state, inputs.identity, after, parts, trainer.far_shares())
            log.record(event="done", nats=after.nats, before=state.measured)
            if (worse := after.nats - state.measured["student"]) > 0:
                log.message(f"the student is worse than before: {worse:+.4f} nats/token")
        accelerator.wait_for_everyone()
    return _report(config.output, done, state.kept, started)


def _finished(config: FinetuneConfig, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Provenance of the last run that trained the output, if that is this run; None if the output may be replaced.

    A kill between writing the result and removing the training state leaves both; the state is then removed.

    Raises:
        UserError: the output is another model and may not be replaced; if there is nothing to resume, the message names
            the differing options.
    """
    try:
        runs = checkpoint.load(config.output).provenance.get("finetune")
        last = runs[-1] if isinstance(runs, list) and runs and isinstance(runs[-1], dict) else {}
        if last:
            known = {*identity, *options(FinetuneConfig)}  # options at their defaults may be in neither
            made = {name: last[name] for name in known if name in last}
            check_identity(made, json.loads(json.dumps(identity)), config.output)
            config.state_path.unlink(missing_ok=True)
            return last
    except UserError:
        if not config.force and not config.state_path.exists():
            raise
    config.check_outputs((), config.force)
    return None


def _report(output: Path, done: dict[str, Any], kept: Sequence[dict[str, Any]], started: float) -> FinetuneReport:
    """The report of a run from its provenance `done`."""
    evaluation = done["evaluation"]

    def figure(name: str) -> Evaluation:
        nats, error = (evaluation.get(key, math.nan) for key in (name, f"{name}_error"))  # only finite ones were kept
        return Evaluation(nats, evaluation["tokens"], evaluation["length"], error)

    teacher = figure("teacher") if "teacher" in evaluation else None
    stages, seconds = tuple(Kept(**row) for row in kept), time.monotonic() - started
    return FinetuneReport(output, teacher, figure("student"), figure("finetuned"), stages, done["tokens"], seconds)


def _rounded(student: Transformer, config: FinetuneConfig) -> Transformer:
    """The student; with `config.rounding`, its folded form with the scheme's rounding."""
    if config.rounding is None:
        return student
    folded, _ = fold(student)
    attach(folded, config.rounding)
    return folded


def _accelerator(config: FinetuneConfig) -> Any:
    import torch
    from accelerate import Accelerator

    choose_device(config.device)  # raises if it is missing
    # without cpu=True, Accelerate does not connect processes on a machine without an accelerator
    accelerator = Accelerator(cpu=config.device == "cpu" or not torch.accelerator.is_available())
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise UserError(
            f"{launched} processes that train jointly", f"{accelerator.num_processes}", "choose another device"
        )
    return accelerator


def _start(config: FinetuneConfig, identity: dict[str, Any], student: Transformer) -> TrainingState:
    """The initial state, or with `resume` the saved one. Raises UserError rather than overwrite an unfinished run."""
    if not config.state_path.exists():
        return TrainingState(identity, student.state_dict())
    if not config.resume:
        raise UserError(
            "no unfinished run with this output",
            f"its state in {config.state_path}",
            "continue with --resume, or delete that file to start again",
        )
    state = load_state(config.state_path, identity)
    steps = [*(plan.steps for plan in config.plan if plan.steps), 0]  # no step after the last stage
    if state.stage >= len(steps) or state.step > steps[state.stage]:
        raise damaged(config.state_path, f"step {state.step} of stage {state.stage}")
    if lora.attached(state.weights):  # the run stopped in a stage with LoRA
        lora.attach(student, config.lora_rank, config.lora_alpha, config.seed, config.lora_targets, config.lora_mixers)
    shapes = {name: tensor.shape for name, tensor in student.state_dict().items()}
    for weights in [state.weights] + ([state.best["weights"]] if state.best else []):
        compare(shapes, {name: weight.shape for name, weight in weights.items()}, str(config.state_path))
    student.load_state_dict(state.weights)
    state.weights = student.state_dict()
    if state.best:
        state.best["weights"] = put_aside(state.best["weights"], config.state_path.parent)
    return state


def _left(loaded: Checkpoint, state: TrainingState, student: Transformer, teacher: Transformer | None) -> list[str]:
    """The parts that are still untrained after the run; a stage that keeps the weights from before it trains none."""
    parts = untrained(loaded.provenance)
    for row in state.kept:
        if row["step"]:
            kind: type[Stage] = pkgutil.resolve_name(STAGES[row["stage"]].stage)
            parts = kind.leaves(parts, student, teacher)
    return parts


def _write(
    config: FinetuneConfig,
    loaded: Checkpoint,
    student: Transformer,
    state: TrainingState,
    identity: dict[str, Any],
    after: Evaluation,
    parts: list[str],
    far_shares: list[list[float]],
) -> dict[str, Any]:
    """Write the output; returns its provenance entry, which contains no dates or durations."""
    shares = [[n, round(ours, 4), round(theirs, 4)] for n, ours, theirs in far_shares]
    measured = {**state.measured, "finetuned": after.nats, "finetuned_error": after.standard_error}
    finite = {name: number for name, number in measured.items() if math.isfinite(number)}  # one window has no error
    done = {
        **identity,
        "files": [path.name for path in config.data or config.pairs],
        "tokens": state.tokens,
        "kept_steps": [row["step"] for row in state.kept],
        "evaluation": {"tokens": after.tokens, "length": after.length, **finite},
        **({FAR_SHARES: shares} if shares else {}),
    }
    provenance = {**loaded.provenance, "finetune": [*loaded.provenance.get("finetune", []), done]}
    provenance = marked(provenance, parts)
    checkpoint.save(config.output, student, loaded.tokenizer, provenance, loaded.source_tokenizer)
    config.state_path.unlink(missing_ok=True)
    return done

"""Finetuning from end to end: a converted model is trained on a text to predict as its teacher does.

Requires a model (usually fresh from `convert`) and, for all stages but `task`, its teacher. Ensures an output file with
the trained model and its history, or no output file; and, until then, a state to resume from.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import os
import pkgutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import assemble, compare, weight_shapes
from t2r_export.config.finetune import LENGTH, STAGES, FinetuneConfig
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed
from t2r_export.files import locked
from t2r_export.fold import fold
from t2r_export.model.transformer import Transformer
from t2r_export.straight_through import attach, settled
from t2r_export.training import lora
from t2r_export.training.best import Kept
from t2r_export.training.data import Corpus, read_corpus
from t2r_export.training.evaluate import Evaluation, evaluate
from t2r_export.training.log import TrainingLog
from t2r_export.training.starts import check_starts, usual_starts
from t2r_export.training.state import TrainingState, damaged, load_state
from t2r_export.training.trainer import Trainer, choose_device, remove_state
from t2r_export.training.window_dropout import check_window_dropout
from t2r_export.training.windows import WindowBatches
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class FinetuneReport:
    """The result of a run: teacher and student on the test part of its text, which nothing else reads."""

    output: Path
    teacher: Evaluation | None
    before: Evaluation
    after: Evaluation
    kept: tuple[Kept, ...]  # of each stage
    tokens: int  # trained on, all stages together
    seconds: float  # of this process, evaluation included


def finetune(config: FinetuneConfig) -> FinetuneReport:
    """Train `config.model` as planned and write `config.output`.

    Raises:
        UserError: an input that cannot be used, an output that may not be written, an unfinished run in the way, one
            that is training the same output, or a state of another run to resume.
        CheckFailed: the loss stopped being finite.
        KeyboardInterrupt: Ctrl-C; the state has been saved.
    """
    config.check_files()
    accelerator = _accelerator(config)
    with locked(config.output, wait=False) if accelerator.is_main_process else contextlib.nullcontext():
        return _finetune(config, accelerator)


def _finetune(config: FinetuneConfig, accelerator: Any) -> FinetuneReport:
    started = time.monotonic()
    main = accelerator.is_main_process
    loaded = checkpoint.load(config.model)
    teacher, corpus, config, identity, notes = _inputs(config, loaded)
    student = _rounded(loaded.model, config)
    batches = WindowBatches(corpus, config)
    with TrainingLog(config.log_path, main) as log:
        for line in [*(f"note: {line}" for line in loaded.notes), *notes]:
            log.message(line)
        state = _start(config, identity, student)
        accelerator.wait_for_everyone()  # before one process may write the state that another still looks for
        accelerator.wait_for_everyone()  # all have looked for a state before anyone writes one
        student.to(accelerator.device)
        if teacher is not None:
            teacher.to(accelerator.device)
        trainer = Trainer(config, student, teacher, batches, accelerator, log, state)
        log.record(event="start", stage=state.stage, step=state.step, **config.recipe())
        if main and not state.measured:
            measured = {"teacher": teacher, "student": student}
            state.measured = {k: evaluate(m, batches.test).nats for k, m in measured.items() if m is not None}
            if teacher is not None:  # what the student's validations compare with
                state.measured["teacher_valid"] = evaluate(teacher, trainer.validation).nats
        trainer.run()
        if main:
            if config.rounding is not None:
                student = settled(student)
            after = evaluate(student, batches.test)
            if not math.isfinite(after.nats):
                raise CheckFailed(f"the trained model's loss is {after.nats}; {config.state_path} keeps its weights")
            _write(config, loaded, student, state, identity, after)
            log.record(event="done", nats=after.nats, before=state.measured)
            if (worse := after.nats - state.measured["student"]) > 0:
                log.message(f"the student is worse than before: {worse:+.4f} nats/token")
        accelerator.wait_for_everyone()
    if not main:
        after = Evaluation(math.nan, 0, config.window)
    figures = {name: dataclasses.replace(after, nats=nats) for name, nats in state.measured.items()}
    return FinetuneReport(
        config.output,
        figures.get("teacher"),
        figures.get("student", after),
        after,
        tuple(Kept(**row) for row in state.kept),
        state.tokens,
        time.monotonic() - started,
    )


def _rounded(student: Transformer, config: FinetuneConfig) -> Transformer:
    """The student, or where it is trained for a scheme its folded form, with the scheme's rounding in it."""
    if config.rounding is None:
        return student
    folded, _ = fold(student)
    attach(folded, config.rounding)
    return folded


def _accelerator(config: FinetuneConfig) -> Any:
    import torch
    from accelerate import Accelerator

    choose_device(config.device)  # raises where it is missing
    # without cpu=True, Accelerate does not connect the processes of a machine that has no accelerator
    accelerator = Accelerator(cpu=config.device == "cpu" or not torch.accelerator.is_available())
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise UserError(
            f"{launched} processes that train jointly", f"{accelerator.num_processes}", "choose another device"
        )
    return accelerator


def _inputs(
    config: FinetuneConfig, loaded: Checkpoint
) -> tuple[Transformer | None, Corpus, FinetuneConfig, dict[str, Any], list[str]]:
    """Teacher and text, checked against the student; the config as it suits all three, the identity of the run, and
    lines that say what was chosen."""
    teacher, teacher_sha256 = _teacher(config, loaded)
    corpus = read_corpus(config.data, loaded.tokenizer, loaded.config, config.shares, config.separator)
    config, notes = _suited(config, loaded, teacher, corpus)
    limit = loaded.config.max_positions
    if limit is not None and config.reach > limit:
        received = f"{config.window}" + (", twice that with carried states" if config.carried_states else "")
        raise UserError(f"a length of at most {limit}, the model's last position", received, "shorten it")
    check_starts(config, loaded.model, corpus.row)
    check_window_dropout(config.window_dropout, loaded.model)
    identity = {**config.recipe(), "data": corpus.sha256, "model": loaded.sha256, "teacher": teacher_sha256}
    return teacher, corpus, config, identity, notes


def _suited(
    config: FinetuneConfig, student: Checkpoint, teacher: Transformer | None, corpus: Corpus
) -> tuple[FinetuneConfig, list[str]]:
    """What nobody chose, as it suits the models and the text; a line for each of it that is not the usual."""
    asked, notes = config, []
    config = config.for_model(student.config.width, student.config.max_positions, corpus.row)
    if asked.start_positions is None:
        config = dataclasses.replace(config, start_positions=usual_starts(student.model))
    if asked.length is None and config.window != LENGTH:
        whose = "the model's context" if corpus.row is None else "the rows' length"
        notes.append(f"windows of {config.window} tokens, {whose}")
    stages = {name: pkgutil.resolve_name(kind.stage) for name, kind in STAGES.items()}
    idle = {p.stage for p in config.plan if p.optional and not stages[p.stage].trains(student.model, teacher)}
    notes += [f"no {name}: the student has nothing that it trains" for name in sorted(idle)]
    return dataclasses.replace(config, plan=tuple(p for p in config.plan if p.stage not in idle)), notes


def _teacher(config: FinetuneConfig, student: Checkpoint) -> tuple[Transformer | None, str | None]:
    if config.rounding is not None and config.teacher is None:
        # as it is before the rounding; a fold keeps what it does not change, so that training would change both
        return copy.deepcopy(student.model), student.sha256
    if config.teacher is not None:
        loaded = checkpoint.load(config.teacher)
        if loaded.config.vocab_size != student.config.vocab_size:
            raise UserError(
                f"a teacher with the student's vocabulary of {student.config.vocab_size}",
                f"one of {loaded.config.vocab_size}",
                "give the model that the student was converted from",
            )
        return loaded.model, loaded.sha256
    if not any(STAGES[plan.stage].needs_teacher for plan in config.plan if plan.steps):
        return None, None
    return original(student), None


def original(converted: Checkpoint) -> Transformer:
    """The model that a converted, still untrained one was made from, with a copy of its weights: conversion keeps them.

    Raises:
        UserError: not a conversion of t2r, or trained since, or without some of its source's weights.
    """
    if "finetune" in converted.provenance:
        raise _no_teacher("weights trained since")
    try:
        config = ModelConfig.from_dict(converted.provenance["convert"]["source_config"])
        same_count = len(config.layers) == len(converted.config.layers)
        if not same_count or dataclasses.replace(config, layers=converted.config.layers) != converted.config:
            raise _no_teacher("one that differs from its source in more than its mixers")
        shapes, state = weight_shapes(config), converted.model.state_dict()
        weights = {name: state[name].clone() for name in shapes if name in state}
        compare(shapes, {name: weight.shape for name, weight in weights.items()}, "the converted model")
    except UserError as error:
        raise _no_teacher(error.received) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # a file may hold anything there
        raise _no_teacher("one without a record of its source") from error
    return assemble(config, weights)


def _no_teacher(received: str) -> UserError:
    expected = "a model fresh from t2r convert, which holds its teacher's weights"
    return UserError(expected, received, "give the teacher explicitly")


def _start(config: FinetuneConfig, identity: dict[str, Any], student: Transformer) -> TrainingState:
    """The initial state, or the saved one with `resume`. Refuses to overwrite the state of an unfinished run."""
    if not config.state_path.exists():
        return TrainingState(identity, student.state_dict())
    if not config.resume:
        raise UserError(
            "no unfinished run with this output",
            f"its state in {config.state_path}",
            "continue with --resume, or delete that file to start again",
        )
    state = load_state(config.state_path, identity)
    steps = [*(plan.steps for plan in config.plan if plan.steps), 0]  # behind the last stage there is none
    if state.stage >= len(steps) or state.step > steps[state.stage]:
        raise damaged(config.state_path, f"step {state.step} of stage {state.stage}")
    if lora.attached(state.weights):
        lora.attach(student, config.lora_rank, config.lora_alpha, config.seed)  # where the run stopped
    shapes = {name: tensor.shape for name, tensor in student.state_dict().items()}
    for weights in [state.weights] + ([state.best["weights"]] if state.best else []):
        compare(shapes, {name: weight.shape for name, weight in weights.items()}, str(config.state_path))
    student.load_state_dict(state.weights)
    return state


def _write(
    config: FinetuneConfig,
    loaded: Checkpoint,
    student: Transformer,
    state: TrainingState,
    identity: dict[str, Any],
    after: Evaluation,
) -> None:
    """Write the output with its history, which is a function of the run: no dates, no durations."""
    done = {
        **identity,
        "files": [path.name for path in config.data],
        "tokens": state.tokens,
        "kept_steps": [row["step"] for row in state.kept],
        "evaluation": {"tokens": after.tokens, "length": after.length, **state.measured, "finetuned": after.nats},
    }
    provenance = {**loaded.provenance, "finetune": [*loaded.provenance.get("finetune", []), done]}
    checkpoint.save(config.output, student, loaded.tokenizer, provenance)
    remove_state(config.state_path)

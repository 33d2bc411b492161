"""The training loop over the stages of a plan.

Batches are a function of the step. Saved states are finite, and a resumed run ends with the weights of an uninterrupted
one (bit for bit on CPU). A stage ends with the weights of its best validation.

Several devices run through Hugging Face Accelerate; each process takes its share of every global batch. Where weights
are sharded (t2r_export.training.sharding), all processes gather them before one validates or saves.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.batches.batch import Batch, Batches
from t2r_export.batches.in_order import in_order
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import STAGES, WIDTH, StagePlan
from t2r_export.errors import CheckFailed
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training import lora, sharding
from t2r_export.training.best import keep_best, load_best, remember
from t2r_export.training.centering import center
from t2r_export.training.diagnostics import feature_statistics, first_not_finite
from t2r_export.training.dropout import dropped
from t2r_export.training.interrupt import Interrupt
from t2r_export.training.log import TrainingLog
from t2r_export.training.measured import Measured, peak_bytes
from t2r_export.training.memory import KeptMemory, narrow, recompute
from t2r_export.training.optimizers import (
    DivergenceGuard,
    OtherGroups,
    learning_rate,
    make_optimizer,
    restart,
    restore,
    set_rate,
)
from t2r_export.training.rises import EVERY, Rise, Watch
from t2r_export.training.stages import LossWeights, Stage
from t2r_export.training.start import far_shares
from t2r_export.training.state import AGAIN, TrainingState, damaged, save_state
from t2r_runtime import glibc
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.tuning import usable_cores

if TYPE_CHECKING:
    from accelerate import Accelerator

LOSS_WEIGHTS = tuple(LossWeights.__dataclass_fields__)  # FinetuneConfig has fields of the same names
WORKERS = 4  # worker processes that make batches for a GPU
LOG_EVERY = EVERY  # steps between readings of the loss, which wait for the device


class Trainer:
    """Trains a student through the stages of a config, starting from `state`."""

    def __init__(
        self,
        config: FinetuneConfig,
        student: Transformer,
        teacher: Transformer | None,
        batches: Batches,
        accelerator: Accelerator,
        log: TrainingLog,
        state: TrainingState,
    ) -> None:
        check_stages(config, student, teacher)
        self.config, self.student, self.teacher = config, student, teacher
        self.accelerator, self.log, self.state = accelerator, log, state
        self.batches = batches
        self.validation = batches.validation(accelerator.num_processes * config.accumulate)
        self.device = accelerator.device
        self._far: dict[int, float] | None = None  # the teacher's attention beyond the student's windows, by layer
        self.plan = [plan for plan in config.plan if plan.steps]
        self._mine = slice(accelerator.process_index, None, accelerator.num_processes)  # of a batch's rows
        self.bf16 = uses_bf16(config, self.device)
        self.sharding = sharding.chosen(accelerator)
        if config.batch % accelerator.num_processes:
            raise UserError(
                f"a batch size divisible by the {accelerator.num_processes} processes", f"{config.batch}", "change one"
            )

    def run(self) -> None:
        """Run all remaining steps. Raises CheckFailed for non-finite values, and KeyboardInterrupt."""
        if self.bf16 and self.teacher is not None:
            narrow(self.teacher)
        if not self.config.state_path.exists():
            self._save(None)  # fails early without disk space, and leaves a state if the first step diverges
        for number, plan in enumerate(self.plan):
            if number >= self.state.stage:
                with Interrupt() as interrupt, contextlib.closing(self._batches(plan)) as batches:
                    self._stage(plan, interrupt, batches)
                self.accelerator.free_memory()
                self.state.stage, self.state.step, self.state.optimizer = number + 1, 0, None
                self.state.watch = {}
                self._save(None)
        self.student.to(self.device).eval()

    def _open(self, plan: StagePlan) -> tuple[Stage, Any, list[nn.Parameter], Any, DivergenceGuard]:
        """Open a stage: itself, wrapped for all devices, its parameters, optimizer and divergence guard."""
        stage = open_stage(self.config, plan, self.student, self.teacher).to(self.device)
        with self._precision():
            stage.measure(self.batches(self._before()).to(self.device))
        if self.sharding is None:
            module, trainable = self.accelerator.prepare(stage), stage.trainable()
        else:
            module = shards = sharding.sharded(stage.cpu(), self.sharding, self.accelerator)
            trainable = shards.trainable()
        width = self.student.config.width if STAGES[plan.stage].scaled else WIDTH
        kind, factors = self.config.optimizer, stage.rate_factors()
        optimizer: Any = make_optimizer(trainable, plan.peak, self.config.weight_decay, kind, width, factors)
        center(optimizer, trainable, stage.means)
        guard = DivergenceGuard(optimizer, self.device)
        if self.state.optimizer is not None:
            try:
                restore(optimizer, self.state.optimizer)
            except OtherGroups as error:
                expected = f"an optimizer with this version's groups of learning rates in {self.config.state_path}"
                do = f"finish the run with the version of t2r that began it, or {AGAIN}"
                raise UserError(expected, "the groups of an older version", do) from error
            except Exception as error:  # a damaged state, or another optimizer's, can raise anything in torch
                raise damaged(self.config.state_path, printable(error, 100)) from error
        return stage, module, list(trainable.values()), optimizer, guard

    def _stage(self, plan: StagePlan, interrupt: Interrupt, batches: Iterator[Batch]) -> None:
        stage, module, parameters, optimizer, guard = self._open(plan)
        trained = self.student if self.sharding is None else module.student
        behind = sum(later.steps for later in self.plan[self.state.stage + 1 :])
        others, every = (self._before(), behind), self.config.validate_every
        self.log.start_stage(plan.stage, self.state.step, plan.steps, self.state.tokens, others, every)
        if self.state.best is None:
            self._validate(stage, 0)
        watch = Watch(**self.state.watch)
        glibc.trim()  # release memory of evaluations, which training would not reuse
        pending: list[Tensor] = []  # loss and gradient norm of the steps since the last reading
        kept_memory = KeptMemory()
        tokens, flops = 0, 0.0  # predicted in these steps; operations per token
        for step, batch in enumerate(batches, self.state.step):
            rate = watch.factor * learning_rate(step, plan.steps, plan.peak, self.config.warmup)
            batch = batch.to(self.device)
            with self._dropped(trained, plan, step), contextlib.nullcontext() if flops else Measured() as measured:
                pending.append(self._step(module, optimizer, guard, parameters, batch, rate))
            kept_memory.after_step()
            flops = flops if measured is None else measured.flops / batch.count
            tokens += batch.count * self.accelerator.num_processes
            done = step + 1
            stopping = self._stops(interrupt.requested, done)
            saving = stopping or done % self.config.checkpoint_every == 0
            validating = done % self.config.validate_every == 0 or done == plan.steps
            if saving or validating or done % LOG_EVERY == 0:
                together = self.sharding is not None or not stopping or self.accelerator.num_processes == 1
                losses = self._read_losses(pending, stage, module, plan, done, together)
                loss = sum(losses) / len(losses)
                if together and (rise := watch.add(losses, done)) is not None:
                    self._gentler(rise, watch, plan, done, module, stage, optimizer)
                self.state.watch = vars(watch)
                if self.sharding is not None and (saving or validating):
                    sharding.gather(module, stage)
                self.state.step, self.state.tokens = done, self.state.tokens + tokens
                pending.clear()
                if validating:
                    self._validate(stage, done)
                self.log.progress(done, loss, rate, self.state.tokens, flops, peak_bytes(self.device))
                tokens = 0
            if saving:
                self._save(optimizer)
            if stopping:
                self.log.close_bar()
                self.log.message(f"stopped after step {done} of {plan.stage}; continue with --resume")
                raise KeyboardInterrupt
        glibc.trim()  # before loading the best weights
        kept = keep_best(self.state, plan.stage, plan.steps, self.student, self.accelerator)
        message = None if kept is None else kept.line()
        if kept is not None and message is not None:
            do = f"; try a lower --lr than {plan.peak:.2g} for {plan.stage}, such as {plan.peak / 4:.2g}"
            self.log.message(message if kept.step else f"{message}{do}, or a larger --batch")
        lora.merge(self.student)

    def _gentler(
        self, rise: Rise, watch: Watch, plan: StagePlan, done: int, module: Any, stage: Stage, optimizer: Any
    ) -> None:
        """After a rise of the loss above that of the first steps, continue from the best weights of the stage."""
        rose = f"rose from {rise.lowest:.4f} to {rise.latest:.4f} before step {done + 1}"
        line = f"{plan.stage}: the loss {rose}; the rest at {watch.factor:g} times the learning rate"
        if rise.worse:
            load_best(self.state, self.student, self.accelerator)
            if self.sharding is not None:
                sharding.scatter(stage, module)
            restart(optimizer)
            step = 0 if self.state.best is None else self.state.best["step"]  # the main process logs
            line = f"{line}, from the weights of step {step}"
        self.log.message(line)

    def _stops(self, stop: bool, done: int) -> bool:
        """Whether to stop after `done` steps; sharded processes, which save together, agree when reading losses."""
        if self.sharding is None:
            return stop
        return done % LOG_EVERY == 0 and bool(self.accelerator.reduce(torch.tensor(float(stop), device=self.device)))

    def _batch(self, step: int) -> Batch:
        """This process's share of the global batch of a step of the run."""
        return self.batches(step).rows(self._mine)

    def _batches(self, plan: StagePlan) -> Generator[Batch, None, None]:
        """Batches of a stage's remaining steps, prefetched by worker processes on a GPU."""
        workers = min(WORKERS, usable_cores() or os.cpu_count() or 1) if self.device.type == "cuda" else 0
        before = self._before()
        return in_order(self._batch, range(before + self.state.step, before + plan.steps), workers)

    def _parts(self, batch: Batch) -> list[Batch]:
        """Micro-batches for gradient accumulation."""
        return batch.split(-(-len(batch) // self.config.accumulate))

    def _precision(self) -> AbstractContextManager[None]:
        """Context of training's precision."""
        return precision(self.config, self.device)

    def _dropped(self, student: Transformer, plan: StagePlan, step: int) -> AbstractContextManager[None]:
        """Context of dropout, in stages that use it."""
        chance = self.config.dropout if STAGES[plan.stage].drops else 0.0
        process = self.accelerator.process_index
        return dropped(student, chance, self.config.seed, step + self._before(), process)

    def _before(self) -> int:
        """Steps of earlier stages; offsets the data of this stage."""
        return sum(plan.steps for plan in self.plan[: self.state.stage])

    def _step(
        self,
        module: nn.Module,
        optimizer: Any,
        guard: DivergenceGuard,
        parameters: list[nn.Parameter],
        batch: Batch,
        rate: float,
    ) -> Tensor:
        """One update. Returns loss and gradient norm (2,) on the device, without waiting for it."""
        set_rate(optimizer, rate)
        loss, parts = torch.zeros((), device=self.device), self._parts(batch)
        for part in parts:
            last = part is parts[-1]
            adding = not last and self.sharding is None  # with sharding, unsharded gradients take too much memory
            with self.accelerator.no_sync(module) if adding else contextlib.nullcontext():
                with self._precision():
                    share = module(part) * (part.count / batch.count)
                self.accelerator.backward(share)
            loss += share.detach()
        norm = sharding.whole(nn.utils.clip_grad_norm_(parameters, self.config.clip))
        guard(norm)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([loss, norm])

    def _read_losses(
        self, pending: list[Tensor], stage: Stage, module: Any, plan: StagePlan, done: int, reduce: bool
    ) -> list[float]:
        """Losses of the pending steps. Raises CheckFailed unless all are finite."""
        values = torch.stack(pending)
        if reduce:
            values = self.accelerator.reduce(values, reduction="mean")
        finite = values.isfinite().all(1)
        if not finite.all():
            first = int((~finite).nonzero()[0])
            loss, norm = values[first].tolist()
            step = done - len(pending) + first
            if self.sharding is not None:
                sharding.gather(module, stage)
                stage.to(self.device)
            with self._precision(), self._dropped(self.student, plan, step):
                batch = self._batch(self._before() + step).to(self.device)
                found = (first_not_finite(stage, part) for part in self._parts(batch))
                where = next(filter(None, found), None)
            raise CheckFailed(
                f"the loss is {loss:g} and its gradient {norm:g} at step {step + 1} of {plan.stage}, "
                f"{f'first in {where}' if where else 'and finite when the step is repeated'}; "
                f"{self.config.state_path} keeps an earlier, finite state; start again with a lower learning rate"
            )
        return [float(value) for value in values[:, 0]]

    @torch.no_grad()
    def _validate(self, stage: Stage, done: int) -> None:
        """Validate in the main process: log loss, nats per token and feature statistics; remember the best weights."""
        if self.log.enabled:
            with self.log.aside(), parametrize.cached():
                parts = self.validation
                stage.to(self.device)
                with self._precision():
                    losses = [float(stage(part.to(self.device))) * part.count for part in parts]
                found = evaluate(self.student, parts)
                layers = feature_statistics(self.student, (part.to(self.device) for part in parts))
                if shares := self._compare(layers):
                    pairs = " ".join(f"{ours:.2f}/{theirs:.2f}" for _, ours, theirs in shares)
                    self.log.message(f"attention in the sums, by layer / the teacher's beyond the window: {pairs}")
                loss = sum(losses) / sum(part.count for part in parts)
                self.log.validation(done, loss, found.nats, found.standard_error, self.state.tokens, layers)
                folder = self.config.state_path.parent
                remember(self.state, done, stage.score(loss, found.nats), self.student, folder)
                if self.sharding is not None:
                    stage.cpu()

    @torch.no_grad()
    def far_shares(self) -> list[list[float]]:
        """[layer, the sums' share of attention, the teacher's share beyond the window] of each hybrid layer."""
        if not any(isinstance(module, HybridMixer) for module in self.student.modules()):
            return []
        return self._compare(feature_statistics(self.student, (part.to(self.device) for part in self.validation)))

    def _compare(self, layers: list[dict[str, float]]) -> list[list[float]]:
        """As `far_shares`, from the statistics of layers, to which the teacher's share is added."""
        if self.teacher is None or not any("far_share" in layer for layer in layers):
            return []
        if self._far is None:
            self._far = far_shares(self.student, self.teacher, self.validation[0].to(self.device))
        for number, layer in enumerate(layers):
            if number in self._far and "far_share" in layer:
                layer["teacher_far_share"] = self._far[number]
        found = [(n, layer) for n, layer in enumerate(layers) if "teacher_far_share" in layer]
        return [[n, layer["far_share"], layer["teacher_far_share"]] for n, layer in found]

    def _save(self, optimizer: Any) -> None:
        """Write the state in the main process. With an optimizer, which may be sharded, all processes must call it."""
        state = None if optimizer is None else optimizer.state_dict()
        if state is not None and self.sharding is not None:
            state = sharding.whole_state(state, self.log.enabled)
        if self.log.enabled:
            with self.log.aside():
                self.state.weights, self.state.optimizer = self.student.state_dict(), state
                save_state(self.config.state_path, self.state)


def uses_bf16(config: FinetuneConfig, device: torch.device) -> bool:
    """Whether a run computes in bfloat16 by autocast."""
    return config.precision == "bf16" or config.precision == "auto" and device.type == "cuda"


def precision(config: FinetuneConfig, device: torch.device) -> AbstractContextManager[None]:
    """Context of training's precision. bfloat16 copies of weights are kept only for the backward pass."""
    return torch.autocast(device.type, torch.bfloat16, uses_bf16(config, device), cache_enabled=False)


def check_stages(config: FinetuneConfig, student: Transformer, teacher: Transformer | None) -> None:
    """Raise UserError if any stage of a run cannot run with these models; and set whether the student recomputes."""
    for plan in config.plan:
        if plan.steps:
            kind: type[Stage] = pkgutil.resolve_name(STAGES[plan.stage].stage)
            kind.check(student, teacher, _weights(config))
            if config.lora and STAGES[plan.stage].takes_lora:
                lora.check(student, config.lora_rank)
    recompute(student, config.recompute)


def open_stage(config: FinetuneConfig, plan: StagePlan, student: Transformer, teacher: Transformer | None) -> Stage:
    """A stage of a run, with adapters if it trains them."""
    if config.lora and STAGES[plan.stage].takes_lora and not lora.attached(student.state_dict()):
        lora.attach(student, config.lora_rank, config.lora_alpha, config.seed, config.lora_targets, config.lora_mixers)
    kind: type[Stage] = pkgutil.resolve_name(STAGES[plan.stage].stage)
    return kind(student, teacher, _weights(config))


def _weights(config: FinetuneConfig) -> LossWeights:
    return LossWeights(*(getattr(config, name) for name in LOSS_WEIGHTS))

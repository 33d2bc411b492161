"""The stages of finetuning: what each one trains, and by which loss.

    transfer  the new mixers' own parameters (φ), so that each layer's output is what the teacher's layer gives for the
              teacher's own hidden states: attention transfer, Zhang et al. 2024 (LoLCATs), arXiv 2410.10254, sec. 3.1
    align     all weights of the new mixers, so that each block's output is what the teacher's block gives for the
              teacher's own hidden states (RADLADS, Goldstein et al. 2025, arXiv 2505.03005, step 1)
    distill   all weights, so that the student's next-token distribution is the teacher's (Hinton et al. 2015), and on
              the way the output of each block
    round     the same, of a folded student whose weights are rounded as its export will round them
    task      all weights, on the text itself: the recipe of Kasai et al. 2021 (T2R), arXiv 2103.13076, section 3

A stage is a module whose `forward` is its loss, so that it can be wrapped for several devices as a whole. A new stage
is a class and an entry in `t2r_export.config.finetune.STAGES`, which names it. Transfer and align are in
t2r_export.training.layerwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.model.ops import State
from t2r_export.model.transformer import BlockTrace, Transformer
from t2r_export.training import lora
from t2r_export.training.losses import divergence, divergence_target, next_token_loss, squared_error, variance
from t2r_runtime.errors import UserError
from t2r_runtime.signature import POSITION


@dataclass(frozen=True)
class LossWeights:
    """What the distill stage's loss is made of: KL, and the weights of what it adds to it."""

    hidden: float = 0.0
    cross_entropy: float = 0.0
    kl_top: int = 0  # of so many of the teacher's most likely tokens, and one bucket; 0: of all tokens


class Stage(nn.Module):
    """Base of the stages. Requires a student, and a teacher where the stage's kind needs one.

    Ensures that exactly the parameters of `trainable` require gradients.
    """

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        super().__init__()
        self.student, self.teacher, self.loss_weights = student, teacher, loss_weights or LossWeights()
        chosen = self.trainable()
        for name, parameter in student.named_parameters():
            parameter.requires_grad_(name in chosen)
        if teacher is not None:
            teacher.requires_grad_(False)
        student.train()  # random feature maps may draw anew; nothing else differs

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        """Whether the stage has anything to train in this student."""
        return True

    def trainable(self) -> dict[str, nn.Parameter]:
        """The student's parameters that this stage changes, by name."""
        every = dict(self.student.named_parameters())
        return lora.trainable(self.student) if lora.attached(every) else every

    def teacher_traces(self, windows: Tensor) -> Iterator[list[BlockTrace[Tensor]]]:
        """The teacher's blocks on each window of a batch (B, T+1), one window at a time."""
        assert self.teacher is not None
        for window in windows.split(1):
            yield self.teacher.traces(window[:, :-1])

    def measure(self, windows: Tensor) -> None:
        """Compute the constants of the loss, once, from a batch (B, T+1)."""

    def penalty(self) -> Tensor:
        """The sum of the mixers' own penalties, a scalar; part of the loss where all weights are trained."""
        return torch.stack(
            [mixer.penalty().to(self.device) for block in self.student.blocks for mixer in block.mixers]
        ).sum()

    def score(self, loss: float, nats: float) -> float:
        """What the validations of a stage are compared by, lower is better: nats per token and the mixers' penalties.

        Args:
            loss, nats: the stage's own loss and nats per token on the valid part.
        """
        return nats + float(self.penalty())

    @property
    def device(self) -> torch.device:
        return self.student.embedding.weight.device

    def states(self, windows: Tensor, start: Tensor | None) -> State[Tensor]:
        """What the student reads windows from: its initial states, with positions counted from `start`."""
        states = self.student.init_state(len(windows))
        return states if start is None else {**states, POSITION: start}

    def forward(self, windows: Tensor, start: Tensor | None = None, before: int = 0) -> Tensor:
        """The loss of a batch, a float32 scalar: a mean over tokens.

        Args:
            windows: (B, T+1) int64.
            start: (B,) int32, the student's position at their start; None: 0.
            before: tokens of each window that are only read, where the stage's kind `carries`.
        """
        raise NotImplementedError


class Distill(Stage):
    """KL(teacher ‖ student) of the next token, plus the weighted terms of `LossWeights`.

    `hidden` times the share of variance of the teacher's block outputs that the student's own do not explain, mean
    over blocks; `cross_entropy` times the cross-entropy of the text.
    """

    variance: Tensor  # (L)

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        assert teacher is not None
        super().__init__(student, teacher, loss_weights)
        if self.loss_weights.hidden:
            check_alike(student, teacher, "comparing hidden states", "set the weight of hidden states to 0")
        self.register_buffer("variance", torch.ones(len(student.blocks)), persistent=False)

    @torch.no_grad()
    def measure(self, windows: Tensor) -> None:
        if self.loss_weights.hidden:
            self.variance.copy_(variance([b.output for b in blocks] for blocks in self.teacher_traces(windows)))

    def forward(self, windows: Tensor, start: Tensor | None = None, before: int = 0) -> Tensor:
        assert self.teacher is not None
        ids, states = windows[:, :-1], self.states(windows, start)
        with torch.no_grad():
            theirs = [_behind(before, block, len(ids)) for block in self.teacher.traces(ids)]
            target = divergence_target(self.teacher.logits_of(theirs, len(ids)).flatten(0, 1), self.loss_weights.kl_top)
            if before:
                _, states = self.student.run(ids[:, :before], states, self.student.ops(before))
        ours = self.student.traces(ids[:, before:], states)
        logits = self.student.logits_of(ours, len(ids))
        loss = divergence(logits.flatten(0, 1), target)
        if self.loss_weights.hidden:
            errors = [squared_error(o.output, t.output) for o, t in zip(ours, theirs, strict=True)]
            loss = loss + self.loss_weights.hidden * (torch.stack(errors) / self.variance).mean()
        if self.loss_weights.cross_entropy:
            loss = loss + self.loss_weights.cross_entropy * next_token_loss(logits, windows[:, before:])
        return loss + self.penalty()


class Round(Distill):
    """The same, of a student whose weights are rounded on the way (t2r_export.straight_through)."""

    def forward(self, windows: Tensor, *rest: Any) -> Tensor:
        with parametrize.cached():  # each weight is rounded once
            return super().forward(windows, *rest)


class Task(Stage):
    """Cross-entropy of the text. Also trains a model from random weights."""

    def forward(self, windows: Tensor, start: Tensor | None = None, before: int = 0) -> Tensor:
        logits = self.student(windows[:, :-1], self.states(windows, start))
        return next_token_loss(logits, windows) + self.penalty()


def _behind(before: int, block: BlockTrace[Tensor], batch: int) -> BlockTrace[Tensor]:
    """A block's trace with the output of the tokens behind the first ones of each sequence alone."""
    output = block.output.view(batch, -1, block.output.shape[-1])[:, before:].flatten(0, 1)
    return dataclasses.replace(block, output=output)


def check_alike(student: Transformer, teacher: Transformer, purpose: str, otherwise: str) -> None:
    if len(student.blocks) != len(teacher.blocks) or student.config.width != teacher.config.width:
        raise UserError(
            f"a teacher with the student's layers and width for {purpose}",
            f"{len(teacher.blocks)} layers of width {teacher.config.width} for "
            f"{len(student.blocks)} of {student.config.width}",
            f"give the model that was converted as the teacher, or {otherwise}",
        )

"""The stages of finetuning.

    transfer  trains parameters that only the new mixers have (φ): each mixer matches the teacher's output for the
              teacher's hidden states. Attention transfer, Zhang et al. 2024 (LoLCATs), arXiv 2410.10254, section 3.1
    align     trains all weights of new mixers: each block matches the teacher's output for the teacher's hidden states
              (RADLADS, Goldstein et al. 2025, arXiv 2505.03005, step 1)
    distill   trains all weights to match the teacher's next-token distribution (Hinton et al. 2015), optionally also
              the outputs of blocks
    round     distill for a folded student whose weights are rounded as its export rounds them
    task      trains all weights on the text, as Kasai et al. 2021 (T2R), arXiv 2103.13076, section 3

A stage is a module whose `forward` is the loss, so that it can be wrapped for several devices. A new stage needs a
class and an entry in `t2r_export.config.stages.STAGES`. Transfer and align are in t2r_export.training.layerwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.data.batch import Batch, initial_states
from t2r_export.model.block import BlockTrace
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_export.training import lora
from t2r_export.training.losses import divergence, divergence_target, next_token_loss, squared_error, variance
from t2r_runtime.contract.signature import POSITION
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class LossWeights:
    """Options of the losses of distill (first three) and task."""

    hidden: float = 0.0  # weight of hidden states
    cross_entropy: float = 0.0  # weight of cross-entropy
    kl_top: int = 0  # KL over this many of the teacher's most likely tokens and one bucket; 0: all tokens
    label_smoothing: float = 0.0


class Stage(nn.Module):
    """Base of the stages. Exactly the parameters of `trainable` require gradients.

    Args:
        teacher: None for stages that need none.
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
        student.train()  # only affects random feature maps, which may redraw

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        """Whether the stage has parameters to train in this student."""
        return True

    def trainable(self) -> dict[str, nn.Parameter]:
        """The student's parameters that this stage trains, by name."""
        every = dict(self.student.named_parameters())
        return lora.trainable(self.student) if lora.attached(every) else every

    def teacher_traces(self, batch: Batch) -> Iterator[list[BlockTrace[Tensor]]]:
        """Traces of the teacher's blocks, one sequence at a time."""
        assert self.teacher is not None
        for one in batch.split(1):
            yield self.teacher.traces(one.ids, initial_states(self.teacher, one))

    def measure(self, batch: Batch) -> None:
        """Compute constants of the loss from a batch, once."""

    def penalty(self) -> Tensor:
        """Sum of the parts' penalties, a scalar; added to the loss where all weights are trained."""
        return torch.stack(
            [part.penalty().to(self.device) for block in self.student.blocks for part in block.parts]
        ).sum()

    def score(self, loss: float, nats: float) -> float:
        """Validation score, lower is better: nats per token plus penalties.

        Args:
            loss: loss of the stage on the valid part.
            nats: nats per token on the valid part.
        """
        return nats + float(self.penalty())

    @property
    def device(self) -> torch.device:
        return self.student.embedding.weight.device

    def states(self, batch: Batch) -> State[Tensor]:
        """Initial states of the student, with positions from the batch's start."""
        states = initial_states(self.student, batch)
        return states if batch.start is None else {**states, POSITION: batch.start}

    def forward(self, batch: Batch) -> Tensor:
        """Loss of a batch, a float32 scalar, mean over predicted tokens."""
        raise NotImplementedError


class Distill(Stage):
    """KL(teacher ‖ student) of the next token, plus the weighted terms of `LossWeights`.

    `hidden` weighs the unexplained share of variance of the teacher's block outputs, mean over blocks; `cross_entropy`
    weighs the cross-entropy of the text.
    """

    variance: Tensor  # (L)

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        assert teacher is not None
        super().__init__(student, teacher, loss_weights)
        if self.loss_weights.hidden:
            check_alike(student, teacher, "comparing hidden states", "set the weight of hidden states to 0")
        self.register_buffer("variance", torch.ones(len(student.layers)), persistent=False)

    @torch.no_grad()
    def measure(self, batch: Batch) -> None:
        if self.loss_weights.hidden:
            traces = zip(batch.split(1), self.teacher_traces(batch), strict=True)
            self.variance.copy_(variance([one.predicted(b.output) for b in blocks] for one, blocks in traces))

    def forward(self, batch: Batch) -> Tensor:
        assert self.teacher is not None
        with torch.no_grad():
            traces = self.teacher.traces(batch.ids, initial_states(self.teacher, batch))
            theirs = [batch.predicted(block.output) for block in traces]
            target = divergence_target(self.teacher.logits_of(theirs[-1]), self.loss_weights.kl_top)
        ours = [batch.predicted(block.output) for block in self.student.traces(batch.ids, self.states(batch))]
        logits = self.student.logits_of(ours[-1])
        loss = divergence(logits, target)
        if self.loss_weights.hidden:
            errors = [squared_error(o, t) for o, t in zip(ours, theirs, strict=True)]
            loss = loss + self.loss_weights.hidden * (torch.stack(errors) / self.variance).mean()
        if self.loss_weights.cross_entropy:
            loss = loss + self.loss_weights.cross_entropy * next_token_loss(logits, batch.labels)
        return loss + self.penalty()


class Round(Distill):
    """Distill for a student with rounded weights (t2r_export.training.straight_through)."""

    def forward(self, batch: Batch) -> Tensor:
        with parametrize.cached():  # rounds each weight once
            return super().forward(batch)


class Task(Stage):
    """Cross-entropy of the text. Also trains models from random weights."""

    def forward(self, batch: Batch) -> Tensor:
        rows = self.student.rows(batch.ids, self.states(batch))
        logits = self.student.logits_of(batch.predicted(rows))
        return next_token_loss(logits, batch.labels, self.loss_weights.label_smoothing) + self.penalty()


def check_alike(student: Transformer, teacher: Transformer, purpose: str, otherwise: str) -> None:
    """Raise UserError unless both models have the same number of layers and width."""
    if len(student.layers) != len(teacher.layers) or student.config.width != teacher.config.width:
        raise UserError(
            f"a teacher with the student's layers and width for {purpose}",
            f"{len(teacher.layers)} layers of width {teacher.config.width} for "
            f"{len(student.layers)} of {student.config.width}",
            f"give the model that was converted as the teacher, or {otherwise}",
        )

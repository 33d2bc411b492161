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

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.batches.batch import Batch, initial_states
from t2r_export.model.block import BlockTrace
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_export.training import lora
from t2r_export.training.losses import (
    divergence,
    divergence_target,
    next_token_loss,
    over_rows,
    squared_error,
    variance,
)
from t2r_runtime.contract.state_spec import POSITION
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
        self.means: dict[str, Tensor] = {}  # of the inputs of feature maps, whose steps are centered
        self.check(student, teacher, self.loss_weights)
        chosen = self.trainable()
        for name, parameter in student.named_parameters():
            parameter.requires_grad_(name in chosen)
        if teacher is not None:
            teacher.requires_grad_(False)
        student.train()  # only affects random feature maps, which may redraw

    @classmethod
    def check(cls, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights) -> None:
        """Raise UserError if the stage cannot run with these models."""

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        """Whether the stage has parameters to train in this student."""
        return True

    @classmethod
    def leaves(cls, parts: list[str], student: Transformer, teacher: Transformer | None) -> list[str]:
        """Those of the student's untrained `parts` (t2r_export.checkpoints.untrained) that the stage does not train."""
        return []

    def trainable(self) -> dict[str, nn.Parameter]:
        """The student's parameters that this stage trains, by name."""
        every = dict(self.student.named_parameters())
        return lora.trainable(self.student) if lora.attached(every) else every

    def rate_factors(self) -> dict[str, float]:
        """Factors on the own rates (t2r_export.training.optimizers) of parameters in this stage; others are 1."""
        return {}

    def teacher_traces(self, batch: Batch) -> Iterator[list[BlockTrace[Tensor]]]:
        """Traces of the teacher's blocks, one sequence at a time."""
        assert self.teacher is not None
        for one in batch.split(1):
            yield self.teacher.traces(one.ids, initial_states(self.teacher, one))

    def measure(self, batch: Batch) -> None:
        """Compute constants of the loss and of steps from a batch, once."""

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

    def head_loss(self, rows: Tensor, loss: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Mean of a loss over output rows (N, D) of the student's last block.

        Args:
            loss: (logits (n, vocabulary), their slice of N) -> mean loss.
        """
        modules = [module for module in (self.student.norm, self.student.head) if module is not None]
        trained = [p for module in modules for p in module.parameters() if p.requires_grad]
        vocabulary = self.student.config.vocab_size
        return over_rows(lambda x, piece: loss(self.student.logits_of(x), piece), rows, vocabulary, trained)

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
        super().__init__(student, teacher, loss_weights)
        self.register_buffer("variance", torch.ones(len(student.layers)), persistent=False)

    @classmethod
    def check(cls, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights) -> None:
        if loss_weights.hidden:
            assert teacher is not None
            check_alike(student, teacher, "comparing hidden states", "set the weight of hidden states to 0")

    @torch.no_grad()
    def measure(self, batch: Batch) -> None:
        if self.loss_weights.hidden:
            traces = zip(batch.split(1), self.teacher_traces(batch), strict=True)
            self.variance.copy_(variance([one.predicted(b.output) for b in blocks] for one, blocks in traces))

    def forward(self, batch: Batch) -> Tensor:
        assert self.teacher is not None
        teacher, labels, weights = self.teacher, batch.labels, self.loss_weights
        with torch.no_grad():
            theirs = self._outputs(teacher, batch, initial_states(teacher, batch))
        ours = self._outputs(self.student, batch, self.states(batch))

        def of_logits(logits: Tensor, rows: slice) -> Tensor:
            with torch.no_grad():
                target = divergence_target(teacher.logits_of(theirs[-1][rows]), weights.kl_top)
            loss = divergence(logits, target)
            if weights.cross_entropy:
                loss = loss + weights.cross_entropy * next_token_loss(logits, labels[rows])
            return loss

        loss = self.head_loss(ours[-1], of_logits)
        if weights.hidden:
            errors = [squared_error(o, t) for o, t in zip(ours, theirs, strict=True)]
            loss = loss + weights.hidden * (torch.stack(errors) / self.variance).mean()
        return loss + self.penalty()

    def _outputs(self, model: Transformer, batch: Batch, states: State[Tensor]) -> list[Tensor]:
        """Predicted rows of each block's output; only the last block's if hidden states are not compared."""
        outputs = model.outputs(batch.ids, states)
        return [batch.predicted(rows) for rows in (outputs if self.loss_weights.hidden else deque(outputs, maxlen=1))]


class Round(Distill):
    """Distill for a student with rounded weights (t2r_export.training.straight_through)."""

    def forward(self, batch: Batch) -> Tensor:
        with parametrize.cached():  # rounds each weight once
            return super().forward(batch)


class Task(Stage):
    """Cross-entropy of the text. Also trains models from random weights."""

    def forward(self, batch: Batch) -> Tensor:
        rows = batch.predicted(self.student.rows(batch.ids, self.states(batch)))
        labels, smoothing = batch.labels, self.loss_weights.label_smoothing
        loss = self.head_loss(rows, lambda logits, piece: next_token_loss(logits, labels[piece], smoothing))
        return loss + self.penalty()


def check_alike(student: Transformer, teacher: Transformer, purpose: str, otherwise: str) -> None:
    """Raise UserError unless both models have the same number of layers and width."""
    if len(student.layers) != len(teacher.layers) or student.config.width != teacher.config.width:
        raise UserError(
            f"a teacher with the student's layers and width for {purpose}",
            f"{len(teacher.layers)} layers of width {teacher.config.width} for "
            f"{len(student.layers)} of {student.config.width}",
            f"pass the model that was converted as the teacher, or {otherwise}",
        )

"""The stages that teach layer by layer: new layers map the teacher's hidden states as the teacher's layers do."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.model.block import Block, BlockTrace
from t2r_export.model.ops import State
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_export.training.batch import Batch, initial_states
from t2r_export.training.losses import squared_error, variance
from t2r_export.training.stages import LossWeights, Stage, check_alike
from t2r_runtime.errors import UserError


class LayerwiseStage(Stage):
    """Base of the stages in which new layers learn to map the teacher's hidden states as the teacher's layers do.

    The loss is the sum over the new layers of the squared error, divided by the variance of what the teacher's layer
    adds to the residual stream: layers weigh alike, and one whose output is 0 starts near 1.
    """

    name: ClassVar[str]
    nothing_new: ClassVar[tuple[str, str, str]]  # what a UserError says where no layer is new
    variance: Tensor  # (new layers)

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        assert teacher is not None
        check_alike(student, teacher, f"the {self.name} stage", f"leave {self.name} out")
        trained = {layer: self.trained_names(student, teacher, layer) for layer in range(len(student.blocks))}
        self.new = {layer: names for layer, names in trained.items() if names}
        if not self.new:
            raise UserError(*self.nothing_new)
        super().__init__(student, teacher, loss_weights)
        self.register_buffer("variance", torch.ones(len(self.new)), persistent=False)

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        assert teacher is not None
        return any(cls.trained_names(student, teacher, n) for n in range(min(len(student.blocks), len(teacher.blocks))))

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        """Names of the parameters of the student's mixer in that layer that are trained; none if it is not new."""
        raise NotImplementedError

    def target_delta(self, teacher: BlockTrace[Tensor]) -> Tensor:
        """What the teacher's layer adds to the residual stream, rows (B·T, D): the scale of the error."""
        raise NotImplementedError

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The student's output for the teacher's input, and the teacher's output, rows (B·T, D) each."""
        raise NotImplementedError

    def score(self, loss: float, nats: float) -> float:
        return loss  # nats come later: what fits its teacher's layers best need not be best as a whole yet

    def trainable(self) -> dict[str, nn.Parameter]:
        names = {f"blocks.{layer}.mixers.{name}" for layer, names in self.new.items() for name in names}
        return {name: p for name, p in self.student.named_parameters() if name in names}

    @torch.no_grad()
    def measure(self, batch: Batch) -> None:
        traces = self.teacher_traces(batch)
        self.variance.copy_(variance([self.target_delta(blocks[n]) for n in self.new] for blocks in traces))

    def forward(self, batch: Batch) -> Tensor:
        assert self.teacher is not None
        states = self.states(batch)
        with torch.no_grad():
            blocks = self.teacher.traces(batch.ids, initial_states(self.teacher, batch))
            step = self.student.context(states, self.student.ops(batch.ids.shape[1]))
        losses = []
        for n in self.new:
            state = self.student.layer_state(states, n)
            losses.append(squared_error(*self.output_and_target(self.student.blocks[n], blocks[n], state, step)))
        return (torch.stack(losses) / self.variance).sum()


class Transfer(LayerwiseStage):
    """Each new mixer's output. A mixer is new if it has parameters that the teacher's lacks; only those are trained."""

    name = "transfer"
    nothing_new = (
        "a student whose mixers have parameters that its teacher's lack",
        "mixers without new parameters",
        "convert the model first, or leave transfer out: align and distill train what is there",
    )

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        ours, theirs = (_mixer_parameters(model.blocks[layer]) for model in (student, teacher))
        return ours - theirs

    def target_delta(self, teacher: BlockTrace[Tensor]) -> Tensor:
        return teacher.mixed

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        return block.mixers[-1](teacher.normed, state, step)[0], teacher.mixed


class Align(LayerwiseStage):
    """Each new block's output, by all weights of its mixer. A mixer is new if it is another than the teacher's.

    The residual stream passes both blocks unchanged. The feed-forward is not trained: gradients go through it to the
    mixer.
    """

    name = "align"
    nothing_new = (
        "a student with other mixers than its teacher",
        "the same mixers in both",
        "convert the model first, or leave align out",
    )

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        same = student.config.layers[layer] == teacher.config.layers[layer]
        return set() if same else _mixer_parameters(student.blocks[layer])

    def target_delta(self, teacher: BlockTrace[Tensor]) -> Tensor:
        return teacher.output - teacher.input

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        return block(teacher.input, state, step)[0], teacher.output


def _mixer_parameters(block: Block) -> set[str]:
    """Their names, behind `blocks.N.mixers.`."""
    return {f"{number}.{name}" for number, mixer in enumerate(block.mixers) for name, _ in mixer.named_parameters()}

"""The stages that teach layer by layer: new layers map the teacher's hidden states as the teacher's layers do."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.data.batch import Batch, initial_states
from t2r_export.model.block import Block, BlockTrace
from t2r_export.model.ops import State
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_export.training.losses import squared_error, variance
from t2r_export.training.stages import LossWeights, Stage, check_alike
from t2r_runtime.errors import UserError

Place = tuple[int, int]  # a layer, and the number of a mixing part in its block


class LayerwiseStage(Stage):
    """Base of the stages in which new layers learn to map the teacher's hidden states as the teacher's layers do.

    The loss is the sum over the new layers of the squared error, divided by the variance of what the teacher's layer
    adds to the residual stream: layers weigh alike, and one whose output is 0 starts near 1.
    """

    name: ClassVar[str]
    nothing_new: ClassVar[tuple[str, str, str]]  # what a UserError says where no layer is new
    whole_blocks: ClassVar[bool] = False  # whether blocks are run, and not new mixers alone
    variance: Tensor  # (new places)

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        assert teacher is not None
        check_alike(student, teacher, f"the {self.name} stage", f"leave {self.name} out")
        self.new = self.trained(student, teacher)
        if not self.new:
            raise UserError(*self.nothing_new)
        for n, m in self.new:
            parts = student.config.layers[n].parts
            if any(part.borrows for part in (parts if self.whole_blocks else parts[m : m + 1])):
                raise UserError(
                    f"layers that can be run alone, for the {self.name} stage",
                    f"layer {n}, which shares the attention weights of the layer below",
                    f"leave {self.name} out",
                )
        super().__init__(student, teacher, loss_weights)
        self.register_buffer("variance", torch.ones(len(self.new)), persistent=False)

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        assert teacher is not None
        return bool(cls.trained(student, teacher))

    @classmethod
    def trained(cls, student: Transformer, teacher: Transformer) -> dict[Place, set[str]]:
        """What is trained of each layer and mixing part, names behind `blocks.N.parts.`; only what is new is there."""
        places = [(n, m) for n, block in enumerate(student.blocks) for m in block.mixing]
        same = [(n, m) for n, m in places if n < len(teacher.blocks) and m in teacher.blocks[n].mixing]
        found = {place: cls.trained_names(student, teacher, *place) for place in same}
        return {place: names for place, names in found.items() if names}

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int, mixer: int) -> set[str]:
        """What is trained so that this mixer's, or its block's, output becomes the teacher's; none if it is not new."""
        raise NotImplementedError

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        """What the teacher's layer adds to the residual stream, rows (B·T, D): the scale of the error."""
        raise NotImplementedError

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], mixer: int, state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The student's output for the teacher's input, and the teacher's output, rows (B·T, D) each."""
        raise NotImplementedError

    def score(self, loss: float, nats: float) -> float:
        return loss  # nats come later: what fits its teacher's layers best need not be best as a whole yet

    def trainable(self) -> dict[str, nn.Parameter]:
        names = {f"blocks.{layer}.parts.{name}" for (layer, _), names in self.new.items() for name in names}
        return {name: p for name, p in self.student.named_parameters() if name in names}

    @torch.no_grad()
    def measure(self, batch: Batch) -> None:
        traces = zip(batch.split(1), self.teacher_traces(batch), strict=True)
        self.variance.copy_(
            variance(
                [one.predicted(self.target_delta(self.student.blocks[n], blocks[n], m)) for n, m in self.new]
                for one, blocks in traces
            )
        )

    def forward(self, batch: Batch) -> Tensor:
        assert self.teacher is not None
        states = self.states(batch)
        with torch.no_grad():
            blocks = self.teacher.traces(batch.ids, initial_states(self.teacher, batch))
            step = self.student.context(states, self.student.ops(batch.ids.shape[1]))
        losses = []
        for n, m in self.new:
            state = self.student.layer_state(states, n)
            pair = self.output_and_target(self.student.blocks[n], blocks[n], m, state, step)
            losses.append(squared_error(*map(batch.predicted, pair)))
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
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int, mixer: int) -> set[str]:
        ours, theirs = (_part_parameters(model.blocks[layer], mixer) for model in (student, teacher))
        rest = [any(not part.mixes for part in model.config.layers[layer].parts) for model in (student, teacher)]
        if rest == [False, True]:
            return set()  # the feed-forward is inside the mixer then, which the teacher's mixers do not give
        return ours - theirs

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        """A merged layer gives the sum of what the teacher's own mixer gives and the one that looks at the source."""
        theirs = [m for m, part in enumerate(teacher.parts) if part.mixes]
        last = mixer == block.mixing[-1]
        places = theirs[theirs.index(mixer) :] if last else [mixer]
        return torch.stack([teacher.parts[m].mixed for m in places]).sum(0)

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], mixer: int, state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        made, _ = block.parts[mixer](teacher.parts[mixer].normed, block.own(mixer, state), step)
        return made, self.target_delta(block, teacher, mixer)


class Align(LayerwiseStage):
    """Each new block's output, by all weights of its new mixers. A mixer is new if it is another than the teacher's.

    The residual stream passes both blocks unchanged. The feed-forward is not trained: gradients go through it to the
    mixers.
    """

    name = "align"
    whole_blocks = True
    nothing_new = (
        "a student with other mixers than its teacher",
        "the same mixers in both",
        "convert the model first, or leave align out",
    )

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int, mixer: int) -> set[str]:
        mixing = student.blocks[layer].mixing
        if mixer != mixing[0]:  # a block's output is compared once
            return set()
        ours, theirs = (model.config.layers[layer].mixers for model in (student, teacher))
        ends = [*range(1, len(mixing)), None]  # the last of a merged layer looks at the source too
        new = [m for n, (m, end) in enumerate(zip(mixing, ends, strict=True)) if ours[n:end] != theirs[n:end]]
        return {name for m in new for name in _part_parameters(student.blocks[layer], m)}

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        return teacher.output - teacher.input

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], mixer: int, state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        return block(teacher.input, state, step)[0], teacher.output


def _part_parameters(block: Block, number: int) -> set[str]:
    """Their names, behind `blocks.N.parts.`."""
    return {f"{number}.{name}" for name, _ in block.parts[number].named_parameters()}

"""Layer-wise stages: new layers learn to map the teacher's hidden states as the teacher's layers do."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.batches.batch import Batch, initial_states
from t2r_export.model.block import Block, BlockTrace
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.ops import State
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_export.training.losses import squared_error, variance
from t2r_export.training.stages import LossWeights, Stage, check_alike
from t2r_export.training.start import input_means
from t2r_runtime.errors import UserError

MAPS = 32.0  # factor on the rates of W of a hybrid's maps in transfer; half of it for b (docs/finetuning.md)
Place = tuple[int, int]  # layer, number of a mixing part in its block


class LayerwiseStage(Stage):
    """Base of the layer-wise stages.

    The loss sums over new layers the squared error divided by the variance of the teacher layer's contribution to the
    residual stream: layers have equal weight, and a zero output has a loss near 1.
    """

    name: ClassVar[str]
    nothing_new: ClassVar[tuple[str, str, str]]  # arguments of the UserError if no layer is new
    whole_blocks: ClassVar[bool] = False  # run whole blocks instead of new mixers only
    variance: Tensor  # (number of new mixing parts,)

    def __init__(
        self, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights | None = None
    ) -> None:
        assert teacher is not None
        self.new = self.trained(student, teacher)
        super().__init__(student, teacher, loss_weights)
        self.register_buffer("variance", torch.ones(len(self.new)), persistent=False)

    @classmethod
    def check(cls, student: Transformer, teacher: Transformer | None, loss_weights: LossWeights) -> None:
        assert teacher is not None
        check_alike(student, teacher, f"the {cls.name} stage", f"leave {cls.name} out")
        if student.config.repeats > 1:
            expected = f"layers that run once, for the {cls.name} stage"
            raise UserError(expected, f"layers that run {student.config.repeats} times", f"leave {cls.name} out")
        new = cls.trained(student, teacher)
        if not new:
            raise UserError(*cls.nothing_new)
        for n, m in new:
            parts = student.config.layers[n].parts
            if any(part.borrows for part in (parts if cls.whole_blocks else parts[m : m + 1])):
                raise UserError(
                    f"layers that can be run alone, for the {cls.name} stage",
                    f"layer {n}, which shares the attention weights of the layer below",
                    f"leave {cls.name} out",
                )

    @classmethod
    def trains(cls, student: Transformer, teacher: Transformer | None) -> bool:
        assert teacher is not None
        return bool(cls.trained(student, teacher))

    @classmethod
    def leaves(cls, parts: list[str], student: Transformer, teacher: Transformer | None) -> list[str]:
        assert teacher is not None
        trained = {f"blocks.{n}.parts.{m}" for n, m in cls.trained(student, teacher)}
        return [part for part in parts if part not in trained]

    @classmethod
    def trained(cls, student: Transformer, teacher: Transformer) -> dict[Place, set[str]]:
        """Trained parameters of each new mixing part, as names behind `blocks.N.parts.`."""
        places = [(n, m) for n, block in enumerate(student.blocks) for m in block.mixing]
        same = [(n, m) for n, m in places if n < len(teacher.blocks) and m in teacher.blocks[n].mixing]
        found = {place: cls.trained_names(student, teacher, *place) for place in same}
        return {place: names for place, names in found.items() if names}

    @classmethod
    def trained_names(cls, student: Transformer, teacher: Transformer, layer: int, mixer: int) -> set[str]:
        """Parameters to train for this mixer, or its block; empty if it is not new."""
        raise NotImplementedError

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        """Contribution of the teacher's layer to the residual stream, rows (B·T, D): the scale of the error."""
        raise NotImplementedError

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], mixer: int, state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Student's and teacher's output for the teacher's input, rows (B·T, D) each."""
        raise NotImplementedError

    def score(self, loss: float, nats: float) -> float:
        return loss  # not nats: the best fit per layer need not be the best model

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
    """Match the output of each mixer with parameters that the teacher's lacks. Trains only these parameters."""

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
            return set()  # the student's mixer includes the feed-forward, the teacher's does not
        return ours - theirs

    def measure(self, batch: Batch) -> None:
        super().measure(batch)
        assert self.teacher is not None
        self.means = input_means(self.student, self.teacher, batch)

    def rate_factors(self) -> dict[str, float]:
        """Maps of hybrid layers learn faster: beside a window, random features are of little use."""
        hybrids = [(name, part) for name, part in self.student.named_modules() if isinstance(part, HybridMixer)]
        maps = {f"{name}.maps.{weight}": p for name, part in hybrids for weight, p in part.maps.named_parameters()}
        return {name: MAPS if p.ndim == 3 else MAPS / 2 for name, p in maps.items()}  # W is (heads, d, features)

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        """For a merged layer, the sum of the teacher's self-attention and cross-attention."""
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
    """Match the output of each new block by training all weights of its new mixers: those unlike the teacher's.

    Feed-forwards are frozen; gradients pass through them to the mixers.
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
        if mixer != mixing[0]:  # one comparison per block
            return set()
        ours, theirs = (model.config.layers[layer].mixers for model in (student, teacher))
        ends = [*range(1, len(mixing)), None]  # the last mixer of a merged layer also reads the source
        new = [m for n, (m, end) in enumerate(zip(mixing, ends, strict=True)) if ours[n:end] != theirs[n:end]]
        return {name for m in new for name in _part_parameters(student.blocks[layer], m)}

    def target_delta(self, block: Block, teacher: BlockTrace[Tensor], mixer: int) -> Tensor:
        return teacher.output - teacher.input

    def output_and_target(
        self, block: Block, teacher: BlockTrace[Tensor], mixer: int, state: State[Tensor], step: Step[Tensor]
    ) -> tuple[Tensor, Tensor]:
        return block(teacher.input, state, step)[0], teacher.output


def _part_parameters(block: Block, number: int) -> set[str]:
    """Names of a part's parameters behind `blocks.N.parts.`."""
    return {f"{number}.{name}" for name, _ in block.parts[number].named_parameters()}

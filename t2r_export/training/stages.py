"""The stages of finetuning: what each one trains, and by which loss.

    transfer  the new mixers' own parameters (φ), so that each layer's output is what the teacher's layer gives for the
              teacher's own hidden states: attention transfer, Zhang et al. 2024 (LoLCATs), arXiv 2410.10254, sec. 3.1
    align     all weights of the new mixers, so that each block's output is what the teacher's block gives for the
              teacher's own hidden states (RADLADS, Goldstein et al. 2025, arXiv 2505.03005, step 1)
    distill   all weights, so that the student's next-token distribution is the teacher's (Hinton et al. 2015), and on
              the way the output of each block
    task      all weights, on the text itself: the recipe of Kasai et al. 2021 (T2R), arXiv 2103.13076, section 3

A stage is a module whose `forward` is its loss: so it can be wrapped for several devices as a whole. A new stage is a
class here and a line in `STAGES`, here and in `finetune_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.model.mixers import State
from t2r_export.model.positions import Rotary
from t2r_export.model.transformer import Block, Transformer
from t2r_export.training import lora
from t2r_export.training.losses import Divergence, next_token_loss, squared_error, variance
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class LossWeights:
    """Of the terms that stand beside KL in the distill stage."""

    hidden: float = 0.0
    cross_entropy: float = 0.0


class Stage(nn.Module):
    """Base of the stages. Requires a student, and a teacher where `needs_teacher`.

    Ensures that exactly the parameters of `trainable` ask for gradients.
    """

    needs_teacher: ClassVar[bool]
    takes_lora: ClassVar[bool] = False  # trains all weights, or adapters where the student has them

    def __init__(self, student: Transformer, teacher: Transformer | None, weights: LossWeights | None = None) -> None:
        super().__init__()
        self.student, self.teacher, self.weights = student, teacher, weights or LossWeights()
        chosen = self.trainable()
        for name, parameter in student.named_parameters():
            parameter.requires_grad_(name in chosen)
        if teacher is not None:
            teacher.requires_grad_(False)
        student.train()  # random feature maps may draw anew; nothing else differs

    def trainable(self) -> dict[str, nn.Parameter]:
        """The student's parameters that this stage changes, by name."""
        every = dict(self.student.named_parameters())
        return lora.trainable(self.student) if lora.attached(every) else every

    def seen(self, windows: Tensor) -> Iterator[list[Layer]]:
        """What the teacher's blocks do with each window of a batch (B, T+1), one at a time."""
        assert self.teacher is not None
        for window in windows.split(1):
            yield read(self.teacher, window[:, :-1])

    def measure(self, windows: Tensor) -> None:
        """Look once at a batch (B, T+1) before training starts, for constants of the loss."""

    def penalty(self) -> Tensor:
        """What the student's mixers add to the loss of a stage that trains all weights: a scalar."""
        return torch.stack([block.mixer.penalty().to(self.device) for block in self.student.blocks]).sum()

    @property
    def device(self) -> torch.device:
        return self.student.embedding.weight.device

    def forward(self, windows: Tensor) -> Tensor:
        """windows (B, T+1) int64 -> the loss, a float32 scalar: a mean over tokens."""
        raise NotImplementedError


class Match(Stage):
    """Base of the stages in which new layers learn what the teacher's do with the teacher's own hidden states.

    The loss is the sum over the new layers of the squared error, divided by the variance of what the teacher's layer
    adds: layers weigh alike, and one that adds nothing starts near 1.
    """

    needs_teacher = True
    name: ClassVar[str]
    nothing_new: ClassVar[tuple[str, str, str]]  # what a UserError says where no layer is new
    variance: Tensor  # (new layers)

    def __init__(self, student: Transformer, teacher: Transformer | None, weights: LossWeights | None = None) -> None:
        assert teacher is not None
        _check_alike(student, teacher, f"the {self.name} stage", f"leave {self.name} out")
        learning = {layer: self.learns(student, teacher, layer) for layer in range(len(student.blocks))}
        self.new = {layer: names for layer, names in learning.items() if names}
        if not self.new:
            raise UserError(*self.nothing_new)
        super().__init__(student, teacher, weights)
        self.register_buffer("variance", torch.ones(len(self.new)), persistent=False)

    def learns(self, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        """Names of the parameters of the student's mixer in that layer that are trained; none if it is not new."""
        raise NotImplementedError

    def added(self, layer: Layer) -> Tensor:
        """What the teacher's layer adds."""
        raise NotImplementedError

    def pair(self, block: Block, layer: Layer, state: State, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
        """What the student's block gives for what the teacher's got, and what the teacher's gave."""
        raise NotImplementedError

    def trainable(self) -> dict[str, nn.Parameter]:
        names = {f"blocks.{layer}.mixer.{name}" for layer, names in self.new.items() for name in names}
        return {name: p for name, p in self.student.named_parameters() if name in names}

    @torch.no_grad()
    def measure(self, windows: Tensor) -> None:
        self.variance.copy_(variance([self.added(layers[n]) for n in self.new] for layers in self.seen(windows)))

    def forward(self, windows: Tensor) -> Tensor:
        assert self.teacher is not None
        ids = windows[:, :-1]
        states = self.student.init_state(len(ids))
        with torch.no_grad():
            layers = read(self.teacher, ids)
            rotary = self.student.embed(ids, states)[1]
        losses = []
        for n in self.new:
            state = self.student.layer_state(states, n)
            losses.append(squared_error(*self.pair(self.student.blocks[n], layers[n], state, rotary)))
        return (torch.stack(losses) / self.variance).sum()


class Transfer(Match):
    """Each new mixer's output. A mixer is new if it has parameters that the teacher's lacks, and only those learn."""

    name = "transfer"
    nothing_new = (
        "a student whose mixers have parameters that its teacher's lack",
        "mixers that have nothing new to learn",
        "convert the model first, or leave transfer out: align and distill train what is there",
    )

    def learns(self, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        ours, theirs = (dict(model.blocks[layer].mixer.named_parameters()) for model in (student, teacher))
        return ours.keys() - theirs.keys()

    def added(self, layer: Layer) -> Tensor:
        return layer.mixed

    def pair(self, block: Block, layer: Layer, state: State, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
        return block.mixer(layer.normed, state, rotary)[0], layer.mixed


class Align(Match):
    """Each new block's output, by all weights of its mixer. A mixer is new if it is another than the teacher's.

    The residual stream passes both blocks unchanged. The feed-forward stays as it is: the mixer learns what it makes
    of its output.
    """

    name = "align"
    nothing_new = (
        "a student with other mixers than its teacher",
        "the same mixers in both",
        "convert the model first, or leave align out",
    )

    def learns(self, student: Transformer, teacher: Transformer, layer: int) -> set[str]:
        same = student.config.layers[layer] == teacher.config.layers[layer]
        return set() if same else {name for name, _ in student.blocks[layer].mixer.named_parameters()}

    def added(self, layer: Layer) -> Tensor:
        return layer.output - layer.input

    def pair(self, block: Block, layer: Layer, state: State, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
        return block(layer.input, state, rotary)[0], layer.output


class Distill(Stage):
    """KL(teacher ‖ student) of the next token, plus what the weights ask for.

    `hidden` times the share of variance of the teacher's block outputs that the student's own do not explain, mean
    over blocks; `cross_entropy` times the cross-entropy of the text.
    """

    needs_teacher = True
    takes_lora = True
    variance: Tensor  # (L)

    def __init__(self, student: Transformer, teacher: Transformer | None, weights: LossWeights | None = None) -> None:
        assert teacher is not None
        super().__init__(student, teacher, weights)
        if self.weights.hidden:
            _check_alike(student, teacher, "comparing hidden states", "set the weight of hidden states to 0")
        self.register_buffer("variance", torch.ones(len(student.blocks)), persistent=False)

    @torch.no_grad()
    def measure(self, windows: Tensor) -> None:
        if self.weights.hidden:
            self.variance.copy_(variance([layer.output for layer in layers] for layers in self.seen(windows)))

    def forward(self, windows: Tensor) -> Tensor:
        assert self.teacher is not None
        ids = windows[:, :-1]
        with torch.no_grad():
            theirs = read(self.teacher, ids)
            target = logits_of(self.teacher, theirs)
        ours = read(self.student, ids)
        logits = logits_of(self.student, ours)
        loss: Tensor = Divergence.apply(logits.flatten(0, 1), target.flatten(0, 1))
        if self.weights.hidden:
            errors = [squared_error(o.output, t.output) for o, t in zip(ours, theirs, strict=True)]
            loss = loss + self.weights.hidden * (torch.stack(errors) / self.variance).mean()
        if self.weights.cross_entropy:
            loss = loss + self.weights.cross_entropy * next_token_loss(logits, windows)
        return loss + self.penalty()


class Task(Stage):
    """Cross-entropy of the text. Also trains a model from random weights."""

    needs_teacher = False
    takes_lora = True

    def forward(self, windows: Tensor) -> Tensor:
        return next_token_loss(self.student(windows[:, :-1]), windows) + self.penalty()


@dataclass(frozen=True)
class Layer:
    """What one block did, (B, T, D) each."""

    input: Tensor  # the residual stream before it
    normed: Tensor  # what its mixer got
    mixed: Tensor  # what its mixer gave
    output: Tensor  # the residual stream after it


def read(model: Transformer, ids: Tensor) -> list[Layer]:
    """What every block does with ids (B, T), from the initial state: `model(ids)` without its last line."""
    states = model.init_state(len(ids))
    x, rotary, _ = model.embed(ids, states)
    layers = []
    for number, block in enumerate(model.blocks):
        normed = block.norm1(x)
        mixed, _ = block.mixer(normed, model.layer_state(states, number), rotary)
        after = block.after_mixer(x, mixed)
        layers.append(Layer(x, normed, mixed, after))
        x = after
    return layers


def logits_of(model: Transformer, layers: list[Layer]) -> Tensor:
    """The last line of `model(ids)`: (B, T, vocabulary)."""
    logits: Tensor = model.head(model.norm(layers[-1].output))
    return logits


def _check_alike(student: Transformer, teacher: Transformer, purpose: str, otherwise: str) -> None:
    if len(student.blocks) != len(teacher.blocks) or student.config.width != teacher.config.width:
        raise UserError(
            f"a teacher with the student's layers and width for {purpose}",
            f"{len(teacher.blocks)} layers of width {teacher.config.width} for "
            f"{len(student.blocks)} of {student.config.width}",
            f"give the model that was converted as the teacher, or {otherwise}",
        )


# the stages by name; how long they train, and how fast, stands in t2r_export.config.finetune under the same names
STAGES: dict[str, type[Stage]] = {"transfer": Transfer, "align": Align, "distill": Distill, "task": Task}

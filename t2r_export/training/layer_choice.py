"""Which layers to convert, and to what, under a budget of state: measured one layer at a time.

Each candidate mixer replaces softmax attention in every layer at once and is trained by attention transfer, whose
losses are per layer, so that one short run trains them all. Then the teacher is evaluated on the valid part with a
single block replaced: the increase in nats per token is assumed to be additive over blocks, which is an approximation.
The chosen model is also measured as a whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from t2r_export.config.layer import LayerConfig, mixer_of
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.stages import STAGES
from t2r_export.data.batch import Batch, window_batch, window_batches
from t2r_export.data.corpus import Windows, held_out_windows
from t2r_export.data.shards import Corpus
from t2r_export.errors import CheckFailed
from t2r_export.model.block import Block
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training.layerwise import Transfer
from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.trainer import learning_rate
from t2r_runtime.errors import UserError

WARMUP, CLIP = 0.05, 1.0  # of the transfer, as in finetuning


@dataclass(frozen=True)
class Option:
    """One mixer in one layer, with all that the layer is then."""

    layer: int
    config: LayerConfig
    cost: float  # nats per token above the teacher with only this block replaced
    bytes: int  # of its state, per sequence

    @property
    def mixer(self) -> MixerConfig | PartConfig:
        """What the layer mixes by, as a person chooses it."""
        return mixer_of(self.config.mixers[0])


@dataclass(frozen=True)
class Trial:
    """How candidates are measured."""

    steps: int = 300  # of transfer, for each mixer
    batch: int = 4  # windows per step
    window: int = 256  # tokens of a window, in transfer and validation; fewer where positions end
    valid: int = 32  # windows of the valid part at most, evenly spread
    seed: int = 0  # of the order of the text


@dataclass(frozen=True)
class Choice:
    """The measurements and the model with the chosen mixers."""

    model: Transformer  # with the chosen mixers as transfer left them, before any finetuning
    options: list[Option]  # all that were measured, layer by layer; the teacher's own first
    chosen: list[Option]  # one per layer
    bytes: int  # of the model's state, per sequence
    teacher_nats: float  # per token, on those windows
    nats: float  # the model's, measured
    tokens: int  # that was trained on, all mixers together


def choose(
    teacher: Transformer,
    candidates: Iterable[Transformer],
    corpus: Corpus,
    budget: int,
    length: int = 2048,
    trial: Trial = Trial(),
    on_progress: Callable[[str], object] = lambda line: None,
) -> Choice:
    """The mixer of each layer that costs least, in sum, with a state of at most `budget`.

    Args:
        teacher: a softmax model.
        candidates: the teacher converted, with one mixer in all layers: a model for each mixer that a layer may get; it
            may also stay as it is. They are trained in place.
        corpus: the train part for transfer and the valid part for measuring; the test part is not read.
        budget: bytes of a sequence's state, float32: exact for states of fixed size, at `length` tokens for those
            that grow.
        on_progress: called with a line for each candidate.

    Raises:
        UserError: a budget below the smallest state that is possible, no candidates, too little text.
        CheckFailed: the loss of transfer is not finite.
    """
    teacher.require_decoder("to choose mixers for by its text", "name the mixer for t2r convert")
    window = min(trial.window, teacher.config.max_positions or trial.window)
    batches = window_batches(held_out_windows(corpus.valid, window, trial.valid))
    base = evaluate(teacher, batches).nats
    windows = Windows(corpus.train, window, trial.batch, trial.seed)
    kept = [Option(n, teacher.config.layers[n], 0.0, state_bytes(b, length)) for n, b in enumerate(teacher.blocks)]
    options = [[option] for option in kept]
    students: dict[LayerConfig, Transformer] = {}
    for student in candidates:
        mixer = student.config.layers[0].mixers[0]
        students |= dict.fromkeys(student.config.layers, student)
        loss = transfer(student, teacher, windows, trial.steps)
        for layer, block in enumerate(student.blocks):
            cost = _with_block(teacher, layer, block, batches) - base
            options[layer].append(Option(layer, student.config.layers[layer], cost, state_bytes(block, length)))
        on_progress(f"{mixer.label} {mixer.summary()}: transfer loss {loss:.4f}")
    if not students:
        raise UserError("at least one mixer to try", "none", "name one")
    fixed = sum(s.bytes(1, length) for s in teacher.state_spec()) - sum(option.bytes for option in kept)
    room = budget - fixed
    chosen = cheapest(options, room, budget)
    model = _assemble(teacher, chosen, students)
    trained = sum(Transfer.trains(student, teacher) for student in dict.fromkeys(students.values()))
    return Choice(
        model,
        [option for layer in options for option in layer],
        chosen,
        fixed + sum(option.bytes for option in chosen),
        base,
        evaluate(model, batches).nats,
        trained * trial.steps * trial.batch * window,
    )


def state_bytes(block: Block, length: int) -> int:
    """Of one sequence after `length` tokens."""
    return sum(spec.bytes(1, length) for spec in block.state_spec())


def cheapest(options: Sequence[Sequence[Option]], room: int, budget: int) -> list[Option]:
    """One option of each layer with the smallest sum of costs whose bytes fit into `room`.

    Exact: dynamic programming over the layers keeps every sum of bytes for which no smaller one is as good.

    Raises:
        UserError: none fits; `budget` is the number that the message names.
    """
    least = [min(option.bytes for option in layer) for layer in options]
    if sum(least) > room:
        raise UserError(
            f"a budget of at least {sum(least) + budget - room} bytes",
            f"{budget}",
            "raise it, or offer mixers with smaller states",
        )
    after = [sum(least[layer + 1 :]) for layer in range(len(options))]  # the least that the layers after it need
    best: list[tuple[int, float, tuple[Option, ...]]] = [(0, 0.0, ())]
    for layer, choices in enumerate(options):
        sums = [(b + o.bytes, i + o.cost, (*picks, o)) for b, i, picks in best for o in choices]
        best = []
        for entry in sorted(sums, key=lambda entry: entry[:2]):
            if entry[0] + after[layer] <= room and (not best or entry[1] < best[-1][1]):
                best.append(entry)
    return list(best[-1][2])


def transfer(student: Transformer, teacher: Transformer, windows: Windows, steps: int) -> float:
    """Train the student's new parameters in place, as the transfer stage does. Returns the mean of the last ten losses.

    A student without new parameters (a window of softmax attention) is not trained: 0.
    """
    if not Transfer.trains(student, teacher):
        return 0.0
    stage = Transfer(student, teacher)
    device = student.embedding.weight.device
    stage.measure(window_batch(windows(0)).to(device))
    trainable = stage.trainable()
    optimizer = make_optimizer(trainable, STAGES["transfer"].learning_rate, 0.0)
    losses: list[Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, STAGES["transfer"].learning_rate, WARMUP)
        loss = stage(window_batch(windows(step)).to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(trainable.values(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    last = float(torch.stack(losses[-10:]).mean()) if losses else math.nan
    if steps and not math.isfinite(last):
        raise CheckFailed(
            f"the loss of transfer is {last} for a {student.config.layers[0].mixers[0].label} mixer; leave it out"
        )
    return last


def _with_block(teacher: Transformer, layer: int, block: Block, batches: list[Batch]) -> float:
    """Nats per token of the teacher with one block replaced; afterwards the teacher is unchanged."""
    blocks: nn.ModuleList = teacher.blocks  # type: ignore[assignment]
    own = blocks[layer]
    blocks[layer] = block
    try:
        return evaluate(teacher, batches).nats
    finally:
        blocks[layer] = own


def _assemble(teacher: Transformer, chosen: Sequence[Option], students: dict[LayerConfig, Transformer]) -> Transformer:
    """The teacher with the chosen blocks, with a copy of every weight."""
    weights = {n: w for n, w in teacher.state_dict().items() if not n.startswith("blocks.")}
    for option in chosen:
        place = f"blocks.{option.layer}."
        source = students.get(option.config, teacher)
        weights.update({n: w for n, w in source.state_dict().items() if n.startswith(place)})
    config = dataclasses.replace(teacher.config, layers=tuple(option.config for option in chosen))
    model = Transformer(config).to(teacher.embedding.weight)
    model.load_state_dict(weights)
    return model.eval()

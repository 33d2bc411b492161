"""Which layers to convert, and to what, under a budget of state: measured one layer at a time.

Every mixer that is offered takes the place of softmax attention in every layer at once and learns by attention
transfer, whose losses are a layer's own; so one short run teaches them all. Then the teacher reads held-out text with
a single block replaced. What that costs in nats per token is taken for what the block costs in company too, which is an
approximation; the chosen model is measured as a whole beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from t2r_export.config.finetune import STAGES
from t2r_export.config.mixers import MixerConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Block, Transformer
from t2r_export.training.data import Corpus, Windows, held_out_windows
from t2r_export.training.evaluate import evaluate, spread
from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.stages import Transfer
from t2r_export.training.trainer import learning_rate
from t2r_runtime.errors import CheckFailed, UserError

WARMUP, CLIP = 0.05, 1.0  # of the transfer, as in finetuning


@dataclass(frozen=True)
class Option:
    """One mixer in one layer."""

    layer: int
    mixer: MixerConfig
    increase: float  # nats a token above the teacher, with this block alone replaced
    bytes: int  # of its state, a sequence


@dataclass(frozen=True)
class Trial:
    """How mixers are tried."""

    steps: int = 300  # of transfer, for each mixer
    batch: int = 4  # windows a step
    window: int = 256  # tokens of a window, in transfer and on held-out text; fewer where positions end
    held_out: int = 32  # windows of held-out text at most, evenly spread
    seed: int = 0  # of the new parameters and of the order of the text


@dataclass(frozen=True)
class Choice:
    """What was found, and the model that follows from it."""

    model: Transformer  # with the chosen mixers as transfer left them: like a conversion, before any finetuning
    options: list[Option]  # all that were measured, layer by layer; the teacher's own first
    chosen: list[Option]  # one a layer
    bytes: int  # of the model's state, a sequence
    teacher_nats: float  # a token, on the held-out windows
    nats: float  # the model's, measured
    tokens: int  # that transfer was trained on, all mixers together


def choose(
    teacher: Transformer,
    mixers: Sequence[MixerConfig],
    corpus: Corpus,
    budget: int,
    length: int = 2048,
    trial: Trial = Trial(),
    say: Callable[[str], object] = lambda line: None,
) -> Choice:
    """The mixers, a layer each, that are expected to cost the fewest nats per token with a state of at most `budget`.

    Args:
        teacher: a softmax model.
        mixers: what a layer may become; it may also stay as it is.
        corpus: text to transfer on, and to measure on.
        budget: bytes of a sequence's state, float32: exact for states of fixed size, at `length` tokens for those
            that grow.

    Raises:
        UserError: a budget that nothing fits into (the least that does is said), no mixers, too little text.
        CheckFailed: transfer came to numbers that are not finite.
    """
    if not mixers:
        raise UserError("at least one mixer to try", "none", "name one")
    window = min(trial.window, teacher.config.max_positions or trial.window)
    windows = spread(held_out_windows(corpus.validation, window), trial.held_out)
    base = evaluate(teacher, windows).nats
    kept = [Option(n, teacher.config.layers[n], 0.0, state_bytes(b, length)) for n, b in enumerate(teacher.blocks)]
    options = [[option] for option in kept]
    students: dict[MixerConfig, Transformer] = {}
    for mixer in mixers:
        students[mixer] = student = convert(teacher, mixer, seed=trial.seed)
        loss = transfer(student, teacher, Windows(corpus.training, window, trial.batch, trial.seed), trial.steps)
        for layer, block in enumerate(student.blocks):
            nats = _with_block(teacher, layer, block, windows)
            options[layer].append(Option(layer, mixer, nats - base, state_bytes(block, length)))
        say(f"{mixer.kind} {mixer.summary()}: transfer loss {loss:.4f}")
    fixed = sum(s.bytes(1, length) for s in teacher.state_spec()) - sum(option.bytes for option in kept)
    chosen = cheapest(options, budget - fixed, budget)
    model = _assemble(teacher, chosen, students)
    taught = sum(_is_new(student, teacher) for student in students.values())
    return Choice(
        model,
        [option for layer in options for option in layer],
        chosen,
        fixed + sum(option.bytes for option in chosen),
        base,
        evaluate(model, windows).nats,
        taught * trial.steps * trial.batch * window,
    )


def state_bytes(block: Block, length: int) -> int:
    """Of one sequence after `length` tokens."""
    return sum(spec.bytes(1, length) for spec in block.mixer.state_spec())


def cheapest(options: Sequence[Sequence[Option]], room: int, budget: int) -> list[Option]:
    """One option of each layer, of the smallest sum of increases whose bytes fit into `room`: exact, by keeping every
    sum of bytes for which no smaller one is as good.

    Raises:
        UserError: none fits; `budget` is the number to complain about.
    """
    least = [min(option.bytes for option in layer) for layer in options]
    if sum(least) > room:
        raise UserError(
            f"a budget of at least {sum(least) + budget - room} bytes",
            f"{budget}",
            "raise it, or offer mixers with smaller states",
        )
    after = [sum(least[layer + 1 :]) for layer in range(len(options))]  # what the layers to come need anyway
    best: list[tuple[int, float, tuple[Option, ...]]] = [(0, 0.0, ())]
    for layer, offers in enumerate(options):
        sums = [(b + o.bytes, i + o.increase, (*picks, o)) for b, i, picks in best for o in offers]
        best = []
        for entry in sorted(sums, key=lambda entry: entry[:2]):
            if entry[0] + after[layer] <= room and (not best or entry[1] < best[-1][1]):
                best.append(entry)
    return list(best[-1][2])


def transfer(student: Transformer, teacher: Transformer, windows: Windows, steps: int) -> float:
    """Teach what is new in the student's mixers, in place, as the stage does. Returns the mean of the last ten losses.

    A student without new parameters (a window of softmax attention) is left alone: 0.
    """
    if not _is_new(student, teacher):
        return 0.0
    stage = Transfer(student, teacher)
    device = student.embedding.weight.device
    stage.measure(windows(0).to(device))
    trainable = stage.trainable()
    optimizer = make_optimizer(trainable, STAGES["transfer"].learning_rate, 0.0)
    losses: list[Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, STAGES["transfer"].learning_rate, WARMUP)
        loss = stage(windows(step).to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(trainable.values(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    last = float(torch.stack(losses[-10:]).mean()) if losses else math.nan
    if steps and not math.isfinite(last):
        raise CheckFailed(f"the loss of transfer is {last} for a {student.config.layers[0].kind} mixer; leave it out")
    return last


def _is_new(student: Transformer, teacher: Transformer) -> bool:
    """Whether the student has parameters that its teacher lacks."""
    return bool(dict(student.named_parameters()).keys() - dict(teacher.named_parameters()).keys())


def _with_block(teacher: Transformer, layer: int, block: Block, windows: Tensor) -> float:
    """Nats a token of the teacher with one block replaced. The teacher is as it was afterwards."""
    blocks: nn.ModuleList = teacher.blocks  # type: ignore[assignment]
    own = blocks[layer]
    blocks[layer] = block
    try:
        return evaluate(teacher, windows).nats
    finally:
        blocks[layer] = own


def _assemble(teacher: Transformer, chosen: Sequence[Option], students: dict[MixerConfig, Transformer]) -> Transformer:
    """The teacher with the chosen blocks, its own copy of every weight."""
    weights = {n: w for n, w in teacher.state_dict().items() if not n.startswith("blocks.")}
    for option in chosen:
        place = f"blocks.{option.layer}."
        source = students.get(option.mixer, teacher)
        weights.update({n: w for n, w in source.state_dict().items() if n.startswith(place)})
    config = dataclasses.replace(teacher.config, layers=tuple(option.mixer for option in chosen))
    model = Transformer(config).to(teacher.embedding.weight)
    model.load_state_dict(weights)
    return model.eval()

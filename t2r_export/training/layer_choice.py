"""Choose a mixer per layer under a budget of state bytes.

Each candidate mixer replaces all softmax layers and is trained by attention transfer, whose losses are per layer. The
teacher is then evaluated on the valid part with a single block replaced; increases in nats per token are assumed to add
up over blocks, an approximation. The chosen model is also evaluated as a whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from t2r_export.batches.batch import Batch, window_batch, window_batches
from t2r_export.config.layer import LayerConfig, mixer_of
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.stages import STAGES
from t2r_export.data.corpus import Windows, held_out_windows
from t2r_export.data.shards import Corpus
from t2r_export.errors import CheckFailed
from t2r_export.model.block import Block
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import BATCH_TOKENS, evaluate
from t2r_export.training.centering import center
from t2r_export.training.cheapest import cheapest, require_room
from t2r_export.training.layerwise import Transfer
from t2r_export.training.optimizers import learning_rate, make_optimizer, set_rate
from t2r_export.training.start import start
from t2r_runtime.errors import UserError

WARMUP, CLIP = 0.05, 1.0  # of the transfer, as in finetuning


@dataclass(frozen=True)
class Option:
    """One candidate layer."""

    layer: int
    config: LayerConfig
    cost: float  # nats per token above the teacher, with only this block replaced
    bytes: int  # of its states, per sequence

    @property
    def mixer(self) -> MixerConfig | PartConfig:
        """The mixer of the layer."""
        return mixer_of(self.config.mixers[0])


@dataclass(frozen=True)
class Trial:
    """How candidates are trained and evaluated."""

    steps: int = 300  # of transfer, per mixer
    batch: int = 4  # windows per step
    window: int = 256  # tokens per window; limited by the model's positions
    valid: int = 32  # maximum windows of the valid part, evenly spread; fewer if they must be longer
    seed: int = 0  # of the order of windows


@dataclass(frozen=True)
class Choice:
    """Result of `choose`."""

    model: Transformer  # with the chosen mixers after transfer, before finetuning
    options: list[Option]  # all candidates, layer by layer, the teacher's own layer first
    chosen: list[Option]  # one per layer
    bytes: int  # of the model's states, per sequence
    teacher_nats: float  # per token, on the validation windows
    nats: float  # per token, of the chosen model
    tokens: int  # trained on, over all mixers


def choose(
    teacher: Transformer,
    candidates: Iterable[Transformer],
    corpus: Corpus,
    budget: int,
    length: int = 2048,
    trial: Trial = Trial(),
    on_progress: Callable[[str], object] = lambda line: None,
) -> Choice:
    """Choose the mixers with the smallest total cost whose states fit into `budget`.

    Args:
        teacher: a softmax model.
        candidates: the teacher converted to one mixer in all layers, a model per mixer; trained in place. Every layer
            may also stay softmax.
        corpus: train part for transfer, valid part for evaluation; the test part is not read.
        budget: float32 state bytes per sequence; growing states count at `length` tokens.
        on_progress: called with a line per candidate.

    Raises:
        UserError: a budget below the smallest possible state, no candidates, too little text.
        CheckFailed: the loss of transfer is not finite.
    """
    teacher.require_decoder("to choose mixers for by its text", "name the mixer for t2r convert")
    window = corpus.row or min(trial.window, teacher.config.max_positions or trial.window)
    windows = Windows(corpus.train, window, trial.batch, trial.seed)
    kept = [Option(n, teacher.config.layers[n], 0.0, state_bytes(b, length)) for n, b in enumerate(teacher.blocks)]
    fixed = sum(s.bytes(1, length) for s in teacher.state_spec()) - sum(option.bytes for option in kept)
    tried = list(candidates)
    if not tried:
        raise UserError("at least one mixer to try", "none", "name one")
    batches = _held_out(corpus, teacher, tried, window, trial)
    sizes = [[state_bytes(model.blocks[n], length) for model in (teacher, *tried)] for n in range(len(kept))]
    require_room(sizes, budget - fixed, budget)  # before any is trained
    base = evaluate(teacher, batches).nats
    options = [[option] for option in kept]
    students: dict[LayerConfig, Transformer] = {}
    for student in tried:
        mixer = student.config.layers[0].mixers[0]
        students |= dict.fromkeys(student.config.layers, student)
        loss = transfer(student, teacher, windows, trial.steps)
        for layer, block in enumerate(student.blocks):
            option = Option(layer, student.config.layers[layer], math.nan, state_bytes(block, length))
            mixed = _assemble(teacher, [*kept[:layer], option, *kept[layer + 1 :]], students)
            cost = evaluate(mixed, batches).nats - base
            options[layer].append(dataclasses.replace(option, cost=cost))
        on_progress(f"{mixer.label} {mixer.summary()}: transfer loss {loss:.4f}")
    chosen = cheapest(options, budget - fixed, budget)
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


def _held_out(
    corpus: Corpus, teacher: Transformer, tried: Sequence[Transformer], window: int, trial: Trial
) -> list[Batch]:
    """Batches of the valid part: windows of `window` tokens, or of twice what the largest candidate holds.

    In shorter ones, a window and the tokens that it forgets would cost nothing. They are not longer than the model's
    positions and the text, and as many as have the tokens of `trial`, at least one.
    """
    held = max(mixer.memory_length() for model in tried for block in model.blocks for mixer in block.mixers)
    length = window
    if not corpus.row and held > 1:
        limits = [2 * held, teacher.config.max_positions, len(corpus.valid) - 1]
        length = max(window, min(limit for limit in limits if limit is not None))
    count = max(1, trial.valid * window // length)
    return window_batches(held_out_windows(corpus.valid, length, count), max(1, BATCH_TOKENS // length))


def state_bytes(block: Block, length: int) -> int:
    """State bytes of one sequence after `length` tokens."""
    return sum(spec.bytes(1, length) for spec in block.state_spec())


def transfer(student: Transformer, teacher: Transformer, windows: Windows, steps: int) -> float:
    """Train the student's new parameters in place by attention transfer; returns the mean of the last ten losses.

    Returns 0 for a student without new parameters, such as windowed softmax attention.
    """
    if not Transfer.trains(student, teacher):
        return 0.0
    stage = Transfer(student, teacher)
    device = student.embedding.weight.device
    first = window_batch(windows(0)).to(device)
    start(student, teacher, first)
    stage.measure(first)
    trainable = stage.trainable()
    optimizer = make_optimizer(trainable, STAGES["transfer"].learning_rate, 0.0, factors=stage.rate_factors())
    center(optimizer, trainable, stage.means)
    losses: list[Tensor] = []
    for step in range(steps):
        set_rate(optimizer, learning_rate(step, steps, STAGES["transfer"].learning_rate, WARMUP))
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


def _assemble(teacher: Transformer, chosen: Sequence[Option], students: dict[LayerConfig, Transformer]) -> Transformer:
    """The teacher with the chosen blocks; all weights are copied."""
    weights = {n: w for n, w in teacher.state_dict().items() if not n.startswith("blocks.")}
    for option in chosen:
        place = f"blocks.{option.layer}."
        source = students.get(option.config, teacher)
        weights.update({n: w for n, w in source.state_dict().items() if n.startswith(place)})
    config = dataclasses.replace(teacher.config, layers=tuple(option.config for option in chosen))
    model = Transformer(config).to(teacher.embedding.weight)
    model.load_state_dict(weights)
    return model.eval()

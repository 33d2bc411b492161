"""Prove that a graph is still the model: the proof protocol.

Starts from random non-zero states, because a comparison that starts from zero cannot see a state that is never read.
Runs many chained steps, and compares logits and every state with the eager model at each. The tokens are sampled from
the eager model, so that it sees text like its own, and both sides are fed the same ones: a difference is a difference
in arithmetic, never in what was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2r_export.checkpoint import Checkpoint
from t2r_export.fold import FOLD_TOLERANCE, fold
from t2r_export.layout import Group, group, low_name, pack, unpack, with_low
from t2r_export.mixers import State
from t2r_export.model import Transformer
from t2r_export.tolerances import Tolerance, tolerance
from t2r_export.weights import assemble
from t2r_runtime import Decoder, Sampling
from t2r_runtime.errors import UserError

PREFIX_TOKENS = 5  # read at least before the comparison starts, so that every state is non-zero
PARALLEL_TOKENS = 96  # more than one chunk of the parallel form
LOOP_TOKENS = 64
START_TEXTS, START_TOKENS = 16, 4
# Steps in one chain where a cache grows. Softmax attention past the length that it was trained on is ill-conditioned:
# at position 1,000 the eager float32 model of a checkpoint trained on 512 was itself 2e-4 off the float64 one.
GROWING_CHAIN = 256


@dataclass(frozen=True)
class Check:
    """One measured number and the bound that it must not pass."""

    name: str
    worst: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN does not pass


@dataclass
class Report:
    """What `verify` measured."""

    provider: str
    quantization: str
    steps: int
    same_checkpoint: bool
    checks: list[Check] = field(default_factory=list)
    first_greedy_difference: int | None = None
    greedy_agreement: float = 1.0  # share of predictions with the same greedy token
    greedy_bound: float = 1.0  # 1: the same at every step

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and self.greedy_passed

    @property
    def greedy_passed(self) -> bool:
        return self.first_greedy_difference is None or self.greedy_agreement >= self.greedy_bound != 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "quantization": self.quantization,
            "steps": self.steps,
            "same_checkpoint": self.same_checkpoint,
            "checks": [{**vars(check), "passed": check.passed} for check in self.checks],
            "first_greedy_difference": self.first_greedy_difference,
            "greedy_agreement": self.greedy_agreement,
            "greedy_bound": self.greedy_bound,
            "passed": self.passed,
        }


@torch.inference_mode()
def verify(
    checkpoint: Checkpoint,
    path: str | Path,
    provider: str = "cpu",
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
    decoder: Decoder | None = None,
) -> Report:
    """Compare the graph at `path` with the eager model of `checkpoint`.

    Args:
        steps: chained steps to compare. A model whose positions end, or whose cache grows, starts anew as often as
            needed.
        progress: called with the number of steps done.
        decoder: the graph at `path`, where it takes more than its path and provider to open.

    Raises:
        UserError: the graph is of a model of another shape, or nobody has measured a tolerance for the provider.
    """
    if steps < 1:
        raise UserError("at least 1 step", str(steps), "correct --steps")
    decoder = decoder or Decoder(path, provider=provider)
    signature = decoder.signature
    bound = tolerance(provider, signature.quantization)
    model, folds = fold(checkpoint.model)
    unfolded = assemble(checkpoint.config, checkpoint.model.state_dict())  # the same weights
    # the graph's own choice, so that a clamped graph is compared with a clamped model
    for each in (model, unfolded):
        each.positions.past_end = signature.past_end
    groups = group(model.state_spec(), signature.state_layout)
    low = [g.spec.name for g in groups if low_name(g.spec.name) in {state.name for state in signature.states}]
    groups = with_low(groups, low) if low else groups
    _same_interface(decoder, groups, model)
    report = Report(provider, signature.quantization, steps, signature.checkpoint_sha256 == checkpoint.sha256)
    report.greedy_bound = bound.greedy
    generator = torch.Generator().manual_seed(seed)
    _chained(report, unfolded, decoder, groups, bound, steps, generator, progress)
    _from_the_start(report, unfolded, decoder, groups, bound, generator)
    _prefill_against_steps(report, unfolded, decoder, groups, bound, generator)
    if decoder.writes(Sampling()):
        _loop_against_steps(report, unfolded, decoder, groups, bound, generator)
    if signature.batch is None:
        _batch_against_single(report, unfolded, decoder, bound, generator)
    errors = [f.error for f in folds if f.error is not None]
    if errors:
        report.checks.append(Check("folded against unfolded, float64, relative", max(errors), FOLD_TOLERANCE))
    return report


def _same_interface(decoder: Decoder, groups: list[Group], model: Transformer) -> None:
    expected = [state for g in groups for state in g.states]
    received = list(decoder.signature.states)
    if expected != received or decoder.signature.vocab_size != model.config.vocab_size:
        differing = [f"{s.name} {list(s.shape)}" for s in received if s not in expected]
        raise UserError(
            f"a graph of this model: {len(expected)} states, vocabulary {model.config.vocab_size}",
            f"{len(received)} states, vocabulary {decoder.signature.vocab_size}"
            + (f", among them {', '.join(differing[:3])}" if differing else ""),
            "name the checkpoint that the graph was exported from",
        )


def _chained(
    report: Report,
    model: Transformer,
    decoder: Decoder,
    groups: list[Group],
    bound: Tolerance,
    steps: int,
    generator: torch.Generator,
    progress: Callable[[int], None],
) -> None:
    """Step after step from random states: worst logits, worst state, first other greedy token."""
    worst_logits = worst_state = 0.0
    batch = decoder.signature.batch or 2
    done = same = 0
    prefix = _prefix(model)
    chain = GROWING_CHAIN if any(g.spec.grows for g in groups) else steps
    while done < steps:
        states = _random_state(model, batch, generator)
        length = _room(model, prefix, min(steps - done, chain))
        decoder.reset(batch=batch)
        decoder.set_state(pack(_arrays(model, states), groups))
        ids = _random_ids(model, (batch,), generator)
        for step in range(done, done + length):
            expected, states, logits, errors = _step(model, decoder, groups, ids, states)
            worst_logits, worst_state = _worse(worst_logits, errors[0]), _worse(worst_state, errors[1])
            agree = logits.argmax(-1) == expected.numpy().argmax(-1)
            same += int(agree.sum())
            if report.first_greedy_difference is None and not agree.all():
                report.first_greedy_difference = step
            ids = torch.multinomial(expected.softmax(-1), 1, generator=generator)[:, 0]
            progress(step + 1)
        done += length
    report.greedy_agreement = same / (steps * batch)
    report.checks.append(Check("logits, absolute", worst_logits, bound.logits))
    report.checks.append(Check("states, relative", worst_state, bound.state))


def _step(
    model: Transformer, decoder: Decoder, groups: list[Group], ids: Tensor, states: State
) -> tuple[Tensor, State, np.ndarray, tuple[float, float]]:
    """One token on both sides: the model's logits and states, the graph's logits, and the errors of both."""
    expected, states = model.step(ids, states)
    logits = decoder.step(ids.numpy())
    errors = (
        float(np.abs(logits - expected.numpy()).max()),
        state_error(unpack(decoder.state(), groups), _arrays(model, states)),
    )
    return expected, states, logits, errors


def _from_the_start(
    report: Report,
    model: Transformer,
    decoder: Decoder,
    groups: list[Group],
    bound: Tolerance,
    generator: torch.Generator,
) -> None:
    """Many short texts from the initial states, where denominators are small and a guard is most likely to act."""
    worst_logits = worst_state = 0.0
    batch = decoder.signature.batch or START_TEXTS
    for _ in range(math.ceil(START_TEXTS / batch)):
        decoder.reset(batch=batch)
        states = model.init_state(batch)
        for ids in _random_ids(model, (_room(model, 0, START_TOKENS), batch), generator):
            _, states, _, errors = _step(model, decoder, groups, ids, states)
            worst_logits, worst_state = _worse(worst_logits, errors[0]), _worse(worst_state, errors[1])
    report.checks.append(Check("from the start, logits", worst_logits, bound.logits))
    report.checks.append(Check("from the start, states", worst_state, bound.state))


def _prefill_against_steps(
    report: Report,
    model: Transformer,
    decoder: Decoder,
    groups: list[Group],
    bound: Tolerance,
    generator: torch.Generator,
) -> None:
    """The eager parallel form over a text against the graph's single steps over it."""
    batch = decoder.signature.batch or 2
    states = _random_state(model, batch, generator)
    ids = _random_ids(model, (batch, _room(model, _prefix(model), PARALLEL_TOKENS)), generator)
    decoder.reset(batch=batch)
    decoder.set_state(pack(_arrays(model, states), groups))
    logits = decoder.prefill(ids.numpy())
    expected, after = model.prefill(ids, states)
    error = float(np.abs(logits - expected[:, -1].numpy()).max())
    report.checks.append(Check("prefill against steps, logits", error, bound.logits))
    error = state_error(unpack(decoder.state(), groups), _arrays(model, after))
    report.checks.append(Check("prefill against steps, states", error, bound.state))


def _loop_against_steps(
    report: Report,
    model: Transformer,
    decoder: Decoder,
    groups: list[Group],
    bound: Tolerance,
    generator: torch.Generator,
) -> None:
    """What the graph that writes chooses against what its step graph does, with and without chance."""
    start = pack(_arrays(model, _random_state(model, 1, generator)), groups)
    count = _room(model, PREFIX_TOKENS, LOOP_TOKENS)
    differing, worst = 0, 0.0
    for temperature in (0, 1):
        sampling = Sampling(temperature, seed=1, stop_tokens=())
        written, after = [], []
        for callback in (None, lambda token: None):  # whoever wants to see each token gets it from the steps
            decoder.reset(batch=1)
            decoder.set_state(start, PREFIX_TOKENS)
            written.append(decoder.generate([0], count, sampling, callback))
            after.append(decoder.state())
        differing += sum(a != b for a, b in zip(*written, strict=True))
        worst = _worse(worst, state_error(*after))
    report.checks.append(Check("loop against steps, other tokens", differing, 0))
    report.checks.append(Check("loop against steps, states", worst, bound.state))


def _batch_against_single(
    report: Report, model: Transformer, decoder: Decoder, bound: Tolerance, generator: torch.Generator
) -> None:
    """Three sequences together against each alone."""
    ids = _random_ids(model, (3, _room(model, 0, 32)), generator).numpy()
    decoder.reset(batch=3)
    together = decoder.prefill(ids)
    worst = 0.0
    for row, expected in zip(ids, together, strict=True):
        decoder.reset(batch=1)
        worst = _worse(worst, float(np.abs(decoder.prefill(row[None])[0] - expected).max()))
    report.checks.append(Check("batch against single, logits", worst, bound.logits))


def state_error(received: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Largest difference of any state, relative to the largest absolute value of that state."""
    worst = 0.0
    for name, value in expected.items():
        assert received[name].shape == value.shape, (name, received[name].shape, value.shape)
        difference = np.abs(received[name].astype(np.float64) - value).max(initial=0.0)
        worst = _worse(worst, float(difference / max(np.abs(value).max(initial=0.0), np.finfo(np.float32).tiny)))
    return worst


def _worse(a: float, b: float) -> float:
    """The larger one, and NaN if either is: max() would lose it."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _random_state(model: Transformer, batch: int, generator: torch.Generator) -> State:
    """States after a few random tokens, every number of them then scaled by its own factor from 0.5 to 1.5.

    So all are non-zero, none is like another, and their size is one that the model can meet. The position is kept.
    """
    ids = _random_ids(model, (batch, _prefix(model)), generator)
    _, states = model.prefill(ids, model.init_state(batch))
    return {
        name: value * (0.5 + torch.rand(value.shape, generator=generator)) if value.is_floating_point() else value
        for name, value in states.items()
    }


def _prefix(model: Transformer) -> int:
    """Tokens read before a comparison: as many as the states with the longest memory need, up to half of what fits."""
    wanted = max(block.mixer.horizon() for block in model.blocks)
    end = model.config.max_positions
    return max(PREFIX_TOKENS, wanted if end is None else min(wanted, end // 2))


def _random_ids(model: Transformer, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, model.config.vocab_size, shape, generator=generator)


def _room(model: Transformer, used: int, wanted: int) -> int:
    """How many of the wanted tokens fit behind the used ones, where positions end."""
    end = model.config.max_positions
    if end is None or model.positions.past_end == "clamp":
        return wanted
    if end <= used:
        raise UserError(f"a model that reaches past {used} positions", f"max_positions {end}", "nothing to verify")
    return min(wanted, end - used)


def _arrays(model: Transformer, states: State) -> dict[str, np.ndarray]:
    """The states of the unfolded `model` as its graph has them."""
    return {name: value.numpy() for name, value in model.fold_states(states).items()}

"""Prove that a graph is still the model: the proof protocol.

Starts from random non-zero states, because a comparison that starts from zero cannot see a state that is never read.
Runs many chained steps, and compares logits and every state with the eager model at each. The tokens are sampled from
the eager model, so that it sees text like its own, and both sides are fed the same ones: a difference is a difference
in arithmetic, never in what was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import assemble
from t2r_export.fold import FOLD_TOLERANCE, fold
from t2r_export.graph.layout import states_in
from t2r_export.model.transformer import Transformer
from t2r_export.proof.report import Check, Report
from t2r_export.proof.side_by_side import PREFIX_TOKENS, Errors, Lockstep, state_error, worse
from t2r_export.proof.tolerances import Tolerance, tolerance
from t2r_runtime import Decoder, Sampling
from t2r_runtime.errors import UserError

PARALLEL_TOKENS = 96  # more than one chunk of the parallel form
LOOP_TOKENS = 64
START_TEXTS, START_TOKENS = 16, 4
# Steps in one chain where a cache grows. Softmax attention past the length that it was trained on is ill-conditioned:
# at position 1,000 the eager float32 model of a checkpoint trained on 512 was itself 2e-4 off the float64 one.
GROWING_CHAIN = 256


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
    _same_interface(decoder, model)
    report = Report(provider, signature.quantization, steps, signature.checkpoint_sha256 == checkpoint.sha256)
    report.greedy_bound = bound.greedy
    both = Lockstep(unfolded, decoder, torch.Generator().manual_seed(seed))
    _chained(report, both, bound, steps, progress)
    _from_the_start(report, both, bound)
    _prefill_against_steps(report, both, bound)
    if decoder.writes():
        _loop_against_steps(report, both, bound)
    if signature.batch is None:
        _batch_against_single(report, both, bound)
    errors = [f.error for f in folds if f.error is not None]
    if errors:
        report.checks.append(Check("folded against unfolded, float64, relative", max(errors), FOLD_TOLERANCE))
    return report


def _same_interface(decoder: Decoder, model: Transformer) -> None:
    expected = states_in(model.state_spec(), decoder.signature)
    received = list(decoder.signature.states)
    if expected != received or decoder.signature.vocab_size != model.config.vocab_size:
        differing = [f"{s.name} {list(s.shape)}" for s in received if s not in expected]
        raise UserError(
            f"a graph of this model: {len(expected)} states, vocabulary {model.config.vocab_size}",
            f"{len(received)} states, vocabulary {decoder.signature.vocab_size}"
            + (f", among them {', '.join(differing[:3])}" if differing else ""),
            "name the checkpoint that the graph was exported from",
        )


def _chained(report: Report, both: Lockstep, bound: Tolerance, steps: int, progress: Callable[[int], None]) -> None:
    """Step after step from random states: worst logits, worst state, first other greedy token."""
    worst = Errors()
    batch = both.decoder.signature.batch or 2
    done = same = 0
    chain = GROWING_CHAIN if any(state.grows for state in both.decoder.signature.states) else steps
    while done < steps:
        length = both.room(both.prefix, min(steps - done, chain))
        states = both.begin(batch)
        ids = both.random_ids((batch,))
        for step in range(done, done + length):
            expected, states, logits, errors = both.step(ids, states)
            worst = worst.or_worse(errors)
            agree = logits.argmax(-1) == expected.numpy().argmax(-1)
            same += int(agree.sum())
            if report.first_greedy_difference is None and not agree.all():
                report.first_greedy_difference = step
            ids = torch.multinomial(expected.softmax(-1), 1, generator=both.generator)[:, 0]
            progress(step + 1)
        done += length
    report.greedy_agreement = same / (steps * batch)
    report.checks.append(Check("logits, absolute", worst.logits, bound.logits))
    report.checks.append(Check("states, relative", worst.states, bound.state))


def _from_the_start(report: Report, both: Lockstep, bound: Tolerance) -> None:
    """Many short texts from the initial states, where denominators are small and a guard is most likely to act."""
    worst = Errors()
    batch = both.decoder.signature.batch or START_TEXTS
    for _ in range(math.ceil(START_TEXTS / batch)):
        both.decoder.reset(batch=batch)
        states = both.model.init_state(batch)
        for ids in both.random_ids((both.room(0, START_TOKENS), batch)):
            _, states, _, errors = both.step(ids, states)
            worst = worst.or_worse(errors)
    report.checks.append(Check("from the start, logits", worst.logits, bound.logits))
    report.checks.append(Check("from the start, states", worst.states, bound.state))


def _prefill_against_steps(report: Report, both: Lockstep, bound: Tolerance) -> None:
    """The eager parallel form over a text against the graph's single steps over it."""
    batch = both.decoder.signature.batch or 2
    states = both.begin(batch)
    ids = both.random_ids((batch, both.room(both.prefix, PARALLEL_TOKENS)))
    logits = both.decoder.prefill(ids.numpy())
    expected, after = both.model.prefill(ids, states)
    errors = both.errors(logits, expected[:, -1], after)
    report.checks.append(Check("prefill against steps, logits", errors.logits, bound.logits))
    report.checks.append(Check("prefill against steps, states", errors.states, bound.state))


def _loop_against_steps(report: Report, both: Lockstep, bound: Tolerance) -> None:
    """What the graph that writes chooses against what its step graph does, with and without chance."""
    decoder, start = both.decoder, both.packed(both.random_state(1))
    count = both.room(PREFIX_TOKENS, LOOP_TOKENS)
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
        worst = worse(worst, state_error(*after))
    report.checks.append(Check("loop against steps, other tokens", differing, 0))
    report.checks.append(Check("loop against steps, states", worst, bound.state))


def _batch_against_single(report: Report, both: Lockstep, bound: Tolerance) -> None:
    """Three sequences together against each alone."""
    decoder, ids = both.decoder, both.random_ids((3, both.room(0, 32))).numpy()
    decoder.reset(batch=3)
    together = decoder.prefill(ids)
    worst = 0.0
    for row, expected in zip(ids, together, strict=True):
        decoder.reset(batch=1)
        worst = worse(worst, float(np.abs(decoder.prefill(row[None])[0] - expected).max()))
    report.checks.append(Check("batch against single, logits", worst, bound.logits))

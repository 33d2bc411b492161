"""The checks of a report: a graph against the eager model, or against another way of reading the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from t2r_export.model.torch_primitives import rounded_as
from t2r_export.model.transformer import Transformer
from t2r_export.proof.drafts import draft_errors
from t2r_export.proof.report import Check, Report
from t2r_export.proof.rounding import own_rounding
from t2r_export.proof.side_by_side import Errors, SideBySide, Text, divergence, state_error
from t2r_export.proof.sources import source_errors
from t2r_export.proof.tolerances import Tolerance, widened
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import PREFILL
from t2r_runtime.session.stepper import SourceReader

PARALLEL_TOKENS = 96  # more than one chunk of the parallel form
BATCH_TOKENS = 32  # per sequence, of three read together and alone
PIECE = 64  # tokens per piece of a float64 reference
HIDDEN_TOKENS = 9
START_TEXTS, START_TOKENS = 16, 4
REDRAWN = 3  # times that a check is repeated with other texts while its outcome is undecided
# Steps per chain of models with a growing cache. Softmax attention beyond its training length is ill-conditioned: at
# position 1,000 the eager float32 model of a checkpoint trained on 512 was itself 2e-4 off the float64 one.
GROWING_CHAIN = 256


class Checks:
    """Collects the checks of a report."""

    def __init__(self, model: Transformer, bound: Tolerance, always: bool, of: str = "") -> None:
        self._of = of  # before the names of its checks
        self.made: list[Check] = []
        self.redrawn = 0  # checks that were repeated
        self.bound = bound
        self._model, self._always = model, always

    def add(
        self,
        name: str,
        worst: Errors,
        texts: Sequence[Text],
        kinds: Sequence[str] = ("logits", "states"),
        piece: int = 1,
        bound: Tolerance | None = None,
    ) -> None:
        """Add a check per kind of error `worst`, measured over `texts` with states compared after each `piece` tokens.

        Args:
            bound: tolerance of this check; None is the report's.
        """
        fixed_by = bound or self.bound
        pairs = {kind: (getattr(worst, kind), getattr(fixed_by, kind)) for kind in kinds}
        holds = all(error <= fixed for error, fixed in pairs.values())  # False for NaN
        own = None if holds and not self._always else own_rounding(self._model, texts, piece)
        for kind, (error, fixed) in pairs.items():
            rounding = None if own is None else getattr(own, kind)
            allowed = fixed if rounding is None else widened(fixed, rounding)
            self.made.append(Check(f"{self._of}{name}, {kind}", error, allowed, rounding))

    def run(self, check: Callable[..., None], *given: Any) -> None:
        """Call check(self, *given), and again while its outcome is undecided: it draws other texts then."""
        before = len(self.made)
        check(self, *given)
        for _ in range(REDRAWN):
            failed = [made for made in self.made[before:] if not made.passed]
            if not failed or not all(made.undecided for made in failed):
                return
            del self.made[before:]
            self.redrawn += 1
            check(self, *given)


def chained(checks: Checks, report: Report, both: SideBySide, steps: int, on_progress: Callable[[int], None]) -> None:
    """Chained steps from random states: worst logits and states, greedy agreement, of quantized graphs divergence."""
    batch = both.decoder.signature.batch or 2
    done = same = 0
    lost = 0.0
    mismatches = []
    chain = GROWING_CHAIN if any(state.grows for state in both.decoder.signature.states) else steps
    piece = 1 if report.reference == "float32" or both.rounds else PIECE
    while done < steps:
        end = done + both.room(both.prefix, min(steps - done, chain))
        both.begin(both.random_state(batch))
        ids = both.random_ids((batch,))
        while done < end:
            count = min(piece, end - done)
            expected, logits = both.step(ids) if piece == 1 else both.write(ids, count)
            if checks.bound.divergence < math.inf:
                lost += divergence(logits, expected.numpy())
            theirs, ours = torch.from_numpy(logits.argmax(-1)), expected.argmax(-1)  # (count, B)
            same += int((theirs == ours).sum())
            behind = (expected.gather(-1, ours[..., None]) - expected.gather(-1, theirs[..., None])).amax((1, 2))
            mismatches += [(done + int(n), float(behind[n])) for n in (theirs != ours).any(1).nonzero()[:, 0]]
            ids = both.drawn(expected[-1])
            done += count
            on_progress(done)
    report.greedy_agreement = same / (steps * batch)
    checks.add("chained steps", *both.compared(), piece=piece)
    if checks.bound.divergence < math.inf:
        checks.made.append(Check("chained steps, divergence", lost / (steps * batch), checks.bound.divergence))
    # logits within twice the bound of each other may swap ranks: a tie, not a mismatch
    tie = 2 * checks.made[0].tolerance if report.greedy_bound == 1 else 0.0
    report.first_greedy_mismatch = next((step for step, behind in mismatches if not behind <= tie), None)


def from_the_start(checks: Checks, both: SideBySide) -> None:
    """Short texts from the initial states, where denominators are small and guards act."""
    batch = both.decoder.signature.batch or START_TEXTS
    for _ in range(math.ceil(START_TEXTS / batch)):
        both.begin(both.initial(batch))
        ids = both.first_ids(batch)
        for _ in range(both.room(0, START_TOKENS)):
            ids = both.drawn(both.step(ids)[0][0])
    checks.add("from the start", *both.compared())


def sequence_against_steps(checks: Checks, both: SideBySide, at_once: Tolerance) -> None:
    """The eager parallel form, and the prefill graph in one call and in two, against single steps.

    Args:
        at_once: tolerance of the prefill graph.
    """
    decoder, batch = both.decoder, both.decoder.signature.batch or 2
    start = both.random_state(batch)
    both.begin(start)
    written = both.by_graph(both.random_ids((batch,)), both.room(both.prefix, PARALLEL_TOKENS))
    tokens, rows, rounded = zip(*((token, row, both.rounded(1)) for token, row in written), strict=True)
    ids, logits = torch.stack(tokens, 1), rows[-1]
    with rounded_as(torch.cat(parts, -2) for parts in zip(*rounded, strict=True)):
        expected, both.states = both.model.prefill(ids, start)
    both.compare(logits, expected[:, -1])
    worst, (text,) = both.compared()
    text.ids.extend(tokens)
    checks.add("parallel form against steps", worst, [text])
    if PREFILL not in decoder.signature.graphs:
        return  # prompts are read by steps
    by_steps = decoder.state()

    def read(*parts: np.ndarray) -> Errors:
        decoder.set_state(both.packed(start), both.prefix)
        for part in parts:
            received = decoder.prefill(part)
        return Errors(both.logit_error(received, logits), state_error(decoder.state(), by_steps))

    parts = [part for part in np.split(ids.numpy(), [ids.shape[1] // 3], axis=1) if part.shape[1]]
    checks.add("prefill graph against steps", read(ids.numpy()), [text], bound=at_once)
    checks.add("split prefill against steps", read(*parts), [text], bound=at_once)


def drafts_against_steps(checks: Checks, both: SideBySide, decoder: Decoder, at_once: Tolerance) -> None:
    """The draft-check graph against single steps; `at_once` as in `sequence_against_steps`."""
    worst, text = draft_errors(both, decoder)
    checks.add("draft-check graph against steps", worst, [text], bound=at_once)


def hidden_against_eager(checks: Checks, both: SideBySide, decoder: Decoder) -> None:
    """The head's input, after a step and after a prompt."""
    model = both.model
    start = both.random_state(decoder.signature.batch or 2)
    ids = both.text(start, both.room(both.prefix, HIDDEN_TOKENS))
    received, expected, states = [], [], start
    decoder.set_state(both.packed(start), both.prefix)
    for part in ids.tensor_split([1], 1):
        if not part.shape[1]:
            continue  # the model has only one more position
        received.append(decoder.with_hidden(part.numpy())[1])
        with rounded_as(both.rounded(part.shape[1])):
            rows, states = model.hidden(model.given(part), states, model.ops(part.shape[1]))
        expected.append(rows.numpy())
    worst = state_error({"hidden": np.stack(received)}, {"hidden": np.stack(expected)})
    checks.add("hidden, relative", Errors(states=worst), [Text(start, list(ids.unbind(1)))], ["states"])


def context_against_caches(
    checks: Checks, both: SideBySide, bounded: Transformer, whole: Transformer, tokens: int
) -> None:
    """The eager model with a context in softmax layers against the one with growing caches, over `tokens` tokens."""
    batch = both.decoder.signature.batch or 1
    source = () if whole.encoder is None else both.random_sources(batch)
    start, growing = (model.start(*source) if source else model.init_state(batch) for model in (bounded, whole))
    ids = both.text(start, both.room(0, tokens))
    received, expected = bounded.prefill(ids, start)[0], whole.prefill(ids, growing)[0]
    worst = Errors(float((received - expected).abs().max()))
    checks.add("context against growing caches", worst, [Text(start, list(ids.unbind(1)))], ["logits"])


def batch_against_single(checks: Checks, both: SideBySide, bound: Tolerance) -> None:
    """A batch of three sequences against each sequence alone, within `bound`."""
    decoder, start = both.decoder, both.initial(3)
    ids = both.text(start, both.room(0, BATCH_TOKENS))
    decoder.set_state(both.packed(start))
    together, states = decoder.prefill(ids.numpy()), decoder.state()
    worst = Errors()
    for row, alone in enumerate(ids.numpy()):
        decoder.set_state(both.packed({name: value[[row]] for name, value in start.items()}))
        difference = both.logit_error(decoder.prefill(alone[None])[0], together[row])
        ours = {name: value[[row]] for name, value in states.items()}
        worst = worst.or_worse(Errors(difference, state_error(decoder.state(), ours)))
    checks.add("batch against single", worst, [Text(start, list(ids.unbind(1)))], bound=bound)


def encoder_against_eager(checks: Checks, both: SideBySide, encoder: SourceReader, bound: Tolerance) -> None:
    """Encoder states of the graph against the eager encoder, and of single sources against a batch."""
    against_eager, alone = source_errors(both, encoder)
    checks.made.append(Check("encoder graph against eager, states", against_eager, bound.states))
    checks.made.append(Check("source alone against padded, states", alone, bound.states))

"""A draft-check graph and the step graph beside it: logits behind every token, and states after the first few."""

from __future__ import annotations

import numpy as np

from t2r_export.proof.side_by_side import Errors, SideBySide, Text, state_error
from t2r_runtime import Decoder

CHECKED = 11  # tokens in a run, of an odd number; where positions end sooner, fewer


def draft_errors(both: SideBySide, decoder: Decoder) -> tuple[Errors, Text]:
    """The worst over runs that keep one token, several and all, of each sequence as many and each another number."""
    batch = decoder.signature.batch or 3
    start = both.random_state(batch)
    ids = both.random_ids((batch, both.room(both.prefix, CHECKED)))
    count = ids.shape[1]
    decoder.set_state(both.packed(start), both.prefix)
    logits, states = [], []
    for column in ids.T:
        logits.append(decoder.step(column.numpy()))
        states.append(decoder.state())
    worst = Errors()
    for keep in _kept(decoder, batch, count):
        decoder.set_state(both.packed(start), both.prefix)
        received = decoder.check(ids.numpy(), keep)
        expected = {name: np.stack([states[n - 1][name][row] for row, n in enumerate(keep)]) for name in states[0]}
        difference = float(np.abs(received - np.stack(logits, 1)).max())
        worst = worst.or_worse(Errors(difference, state_error(decoder.state(), expected)))
    return worst, Text(start, list(ids.T))


def _kept(decoder: Decoder, batch: int, count: int) -> list[np.ndarray]:
    """How many tokens of each sequence are kept, (batch,) a run."""
    alike = [np.full(batch, n) for n in sorted({1, -(-count // 2), count})]
    if any(spec.grows for spec in decoder.signature.states):
        return alike
    return [*alike, 1 + np.arange(batch) % count, count - np.arange(batch) % count]

"""Compare a draft-check graph with the step graph: logits after every token, states after the kept ones."""

from __future__ import annotations

import numpy as np
import torch

from t2r_export.proof.side_by_side import Errors, SideBySide, Text, state_error
from t2r_runtime import Decoder

CHECKED = 11  # tokens per run; fewer if the model has fewer positions


def draft_errors(both: SideBySide, decoder: Decoder) -> tuple[Errors, Text]:
    """Worst errors over runs that keep one, several and all tokens, equally and unequally per sequence."""
    batch = decoder.signature.batch or 3
    start = both.random_state(batch)
    count = both.room(both.prefix, CHECKED)
    decoder.set_state(both.packed(start), both.prefix)
    tokens, logits, states = [], [], []
    for token, row in both.by_graph(both.random_ids((batch,)), count):
        tokens.append(token)
        logits.append(row)
        states.append(decoder.state())
    ids = torch.stack(tokens, 1)
    worst = Errors()
    for keep in _kept(decoder, batch, count):
        decoder.set_state(both.packed(start), both.prefix)
        received = decoder.check(ids.numpy(), keep)
        expected = {name: np.stack([states[n - 1][name][row] for row, n in enumerate(keep)]) for name in states[0]}
        difference = both.logit_error(received, np.stack(logits, 1))
        worst = worst.or_worse(Errors(difference, state_error(decoder.state(), expected)))
    return worst, Text(start, tokens)


def _kept(decoder: Decoder, batch: int, count: int) -> list[np.ndarray]:
    """Kept tokens per sequence (batch,) for each run."""
    alike = [np.full(batch, n) for n in sorted({1, -(-count // 2), count})]
    if any(spec.grows for spec in decoder.signature.states):
        return alike
    return [*alike, 1 + np.arange(batch) % count, count - np.arange(batch) % count]

"""A translator's encoder graph and its eager encoder side by side, and each source alone against all in one batch."""

from __future__ import annotations

import numpy as np
import torch

from t2r_export.proof.side_by_side import SideBySide, state_error, worse
from t2r_runtime.contract.signature import SOURCE_LENGTH, StateSpec
from t2r_runtime.session.stepper import SourceReader

BATCH = 3  # sources of different lengths, where a graph takes any number


def source_errors(both: SideBySide, encoder: SourceReader) -> tuple[float, float]:
    """Worst relative error of a source state, see `state_error`: against the eager encoder, and of a source alone
    against the same in a batch with longer ones."""
    source_ids, lengths = both.random_sources(encoder.signature.batch or BATCH)
    rows = [row[:length].numpy() for row, length in zip(source_ids, lengths.tolist(), strict=True)]
    together = encoder.encode(rows)
    filled = torch.where(torch.arange(source_ids.shape[1]) < lengths[:, None], source_ids, 0)  # as the runtime does
    expected = both.packed(both.model.start(filled, lengths))
    known = encoder.signature.source
    assert known is not None
    made = [spec for spec in encoder.signature.states if spec.constant or spec.name in known.start_states]
    against_eager = state_error(together, {spec.name: expected[spec.name] for spec in made})
    alone = 0.0
    if encoder.signature.batch is None:
        for row, source in enumerate(rows):
            found = encoder.encode([source])
            cut = {spec.name: _cut(spec, together[spec.name][[row]], source.size) for spec in made}
            alone = worse(alone, state_error({name: found[name] for name in cut}, cut))
    return against_eager, alone


def _cut(spec: StateSpec, value: np.ndarray, length: int) -> np.ndarray:
    """A row of a batch as it is for its own source."""
    if SOURCE_LENGTH not in spec.shape:
        return value
    return np.take(value, np.arange(length), axis=spec.shape.index(SOURCE_LENGTH))

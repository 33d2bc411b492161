"""Compare a translator's encoder graph with the eager encoder, and single sources with a batch."""

from __future__ import annotations

import numpy as np
import torch

from t2r_export.proof.side_by_side import SideBySide, state_error, worse
from t2r_runtime.contract.state_spec import SOURCE_LENGTH, StateSpec
from t2r_runtime.session.stepper import SourceReader

BATCH = 3  # sources of different lengths, for graphs with a dynamic batch


def source_errors(both: SideBySide, encoder: SourceReader) -> tuple[float, float]:
    """Worst `state_error` against the eager encoder, and of single sources against a padded batch."""
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
    """A row of a batch without the padding of its source."""
    if SOURCE_LENGTH not in spec.shape:
        return value
    return np.take(value, np.arange(length), axis=spec.shape.index(SOURCE_LENGTH))

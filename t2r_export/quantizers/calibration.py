"""Calibration data for graphs with states: the inputs of every step over a text.

Random or zero states would give unrealistic ranges, so the float32 graph reads the text and supplies its states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnxruntime.quantization import CalibrationDataReader

from t2r_export.data.corpus import parallel_sequences
from t2r_export.quantizers.base import Calibration, Tokens
from t2r_export.quantizers.pairs import side_by_side, source_feeds
from t2r_runtime import Decoder, Translator
from t2r_runtime.contract.signature import INPUT_IDS, Signature
from t2r_runtime.contract.state_spec import PAST
from t2r_runtime.errors import UserError

SEQUENCES = 4  # batch size of graphs with a dynamic batch


class RecurrentReader(CalibrationDataReader):  # type: ignore[misc]
    """Inputs of every step over a text, or of every source for an encoder."""

    def __init__(self, calibration: Calibration, encoder: bool = False) -> None:
        self.calibration = calibration
        self._read = sources if encoder else targets if calibration.pairs else feeds
        self._feeds: Iterator[dict[str, Any]] | None = None  # created on first use: some calibrators copy their reader

    def get_next(self) -> dict[str, Any] | None:
        if self._feeds is None:
            self._feeds = self._read(self.calibration)
        return next(self._feeds, None)


def feeds(calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Inputs of each step by name.

    Raises:
        UserError: the graph's logits are not finite.
    """
    decoder = Decoder(calibration.graph)
    rows = sequences(calibration.tokens, decoder.signature, calibration.steps)
    decoder.reset(batch=len(rows))
    for ids in np.ascontiguousarray(rows.T):
        yield {INPUT_IDS: ids, **{PAST + name: value for name, value in decoder.state().items()}}
        _require_finite(decoder.step(ids))


def targets(calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Like `feeds`, for a translator; states include those of the source."""
    translator = Translator(calibration.graph)
    specs, groups = translator.signature.states, list(side_by_side(calibration.pairs, translator.signature.batch))
    steps = sum(int(group.lengths.min()) - 1 for group in groups)
    for group in groups[:: -(-steps // calibration.steps)]:  # samples all lengths
        decoder = translator.start(group.sources)
        for ids in np.ascontiguousarray(group.targets[:, : group.lengths.min() - 1].T):
            states = decoder.state()
            yield {INPUT_IDS: ids, **{spec.past: states[spec.name] for spec in specs}}
            _require_finite(decoder.step(ids))


def sources(calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Inputs of an encoder graph; with a dynamic batch one source at a time, without padding."""
    signature = Translator(calibration.graph).signature
    assert signature.source is not None
    for group in side_by_side(calibration.pairs, signature.batch or 1):
        yield source_feeds(group.sources, signature.source.source_length)


def _require_finite(logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        raise UserError("finite logits on the calibration text", "NaN or infinity", "verify the model")


def sequences(tokens: Tokens, signature: Signature, steps: int) -> Tokens:
    """Rows (B, T), evenly spread over a text (N,)."""
    batch = signature.batch or SEQUENCES
    steps = min(steps, max(1, len(tokens) // batch), signature.max_positions or steps)
    return parallel_sequences(tokens, batch, steps)

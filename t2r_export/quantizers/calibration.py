"""Calibration data for a graph with states: the inputs of its steps, as they are when it reads a text.

A calibrator asks for one set of inputs after the other. Random or zero states would give it ranges that never occur,
so the float32 graph reads along, and each set holds the states that it has reached: those of the first step, and those
of the last one of a long text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnxruntime.quantization import CalibrationDataReader

from t2r_export.quantizers.base import Calibration, Tokens
from t2r_export.training.data import parallel_sequences
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.signature import INPUT_IDS, PAST, Signature

SEQUENCES = 4  # read side by side, of a graph of any batch size


class RecurrentReader(CalibrationDataReader):  # type: ignore[misc]
    """The inputs of every step over a text."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._feeds: Iterator[dict[str, Any]] | None = None  # nothing is open yet: some calibrators copy their reader

    def get_next(self) -> dict[str, Any] | None:
        if self._feeds is None:
            self._feeds = feeds(self.calibration)
        return next(self._feeds, None)


def feeds(calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Graph inputs by name, step after step.

    Raises:
        UserError: the graph's logits are not numbers, of which no range can be measured.
    """
    decoder = Decoder(calibration.graph)
    rows = sequences(calibration.tokens, decoder.signature, calibration.steps)
    decoder.reset(batch=len(rows))
    for ids in np.ascontiguousarray(rows.T):
        yield {INPUT_IDS: ids, **{PAST + name: value for name, value in decoder.state().items()}}
        if not np.isfinite(decoder.step(ids)).all():
            raise UserError("a model that gives finite logits", "others on the calibration text", "verify the model")


def sequences(tokens: Tokens, signature: Signature, steps: int) -> Tokens:
    """A text (N,) as rows (B, T) that are read side by side and lie evenly spread over all of it."""
    batch = signature.batch or SEQUENCES
    steps = min(steps, max(1, len(tokens) // batch), signature.max_positions or steps)
    return parallel_sequences(tokens, batch, steps)

"""Quantization configs, and the error of a quantized graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import small
from small import VOCABULARY
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_runtime import Decoder

ROUNDING = [name for name, scheme in SCHEMES.items() if not scheme.keeps]  # schemes of every float32 graph
CLOSE = {"fp16": 0.01, "int8": 0.3, "int8-static": 0.3, "w8": 0.3, "w4": 0.5}  # median_error to the float32 graph


def write_tokens(folder: Path) -> Path:
    """Tokens for calibration and measurement."""
    path = folder / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, VOCABULARY, 1100))
    return path


def config(scheme: str, tokens: Path, **options: Any) -> QuantizeConfig:
    if scheme == "int8-static":
        options = {"calibrate": tokens, "calibrate_steps": 30, **options}
    return QuantizeConfig(scheme=scheme, **options)


def median_error(old: Decoder, new: Decoder, batch: int = 1) -> float:
    """Median over steps of the logits' largest error, relative to the largest logit.

    If a random model's denominator is near its guard, a small error becomes large; the median ignores such steps.
    """
    for decoder in (old, new):
        decoder.reset(batch=batch)
    errors = []
    for ids in small.ids(batch, 20).T.numpy():
        expected = old.step(ids)
        errors.append(np.abs(new.step(ids) - expected).max() / np.abs(expected).max())
    return float(np.median(errors))

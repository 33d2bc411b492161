"""Penalties on the logits of earlier tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.floating[Any]]


def penalized(logits: Logits, text: NDArray[np.int64], penalty: float, ngram: int) -> Logits:
    """Apply both penalties to logits (vocabulary,), in their precision.

    Args:
        text: earlier tokens (T,), oldest first.
        penalty: divides positive and multiplies negative logits of earlier tokens (Keskar et al. 2019, arXiv
            1909.05858, section 4.1); 1 is none.
        ngram: a token that would complete an n-gram of this length a second time gets -inf, unless that leaves no
            token; 0 is none.
    """
    if penalty != 1:
        old, factor = logits[text], logits.dtype.type(penalty)
        logits = logits.copy()
        with np.errstate(over="ignore"):  # -inf is the right limit
            logits[text] = np.where(old > 0, old / factor, old * factor)
    if 0 < ngram <= text.size:
        rows = np.lib.stride_tricks.sliding_window_view(text, ngram)
        begun = (rows[:, :-1] == text[text.size - ngram + 1 :]).all(axis=1)
        left = logits.copy()
        left[rows[begun, -1]] = -np.inf
        logits = left if left.max() > -np.inf else logits
    return logits

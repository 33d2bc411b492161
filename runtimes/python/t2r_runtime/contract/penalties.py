"""What holds a text off from repeating itself: logits lowered by what has occurred, before anything is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.floating[Any]]


def penalized(logits: Logits, text: NDArray[np.int64], penalty: float, ngram: int) -> Logits:
    """Logits (vocabulary,) after both penalties, in their own precision.

    Args:
        text: what has occurred, oldest first (T,).
        penalty: divides positive logits of tokens that have occurred, and multiplies negative ones (Keskar et al. 2019,
            arXiv 1909.05858, section 4.1, for logits of either sign); 1 is none.
        ngram: no `ngram` tokens in a row occur twice: the logit of a token that would complete such a row is -inf. If
            that leaves no token, none is forbidden. 0 is none.
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

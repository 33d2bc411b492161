"""Log-probabilities of a text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import Stepper, TokenIds, require_room, token_ids


def score(
    stepper: Stepper, ids: ArrayLike, on_progress: Callable[[int], object] = lambda done: None
) -> NDArray[np.float64]:
    """Compute the log-probability of each token of a text given the tokens before it.

    Args:
        ids: the text (T,), T of at least 2; its first token is not scored.
        on_progress: called with the number of scored tokens.

    Returns:
        Natural logarithms, float64 (T - 1,). Nats per token are their negated mean.

    Raises:
        UserError: invalid tokens, fewer than two, or more than the model has positions.
    """
    stepper.reset(batch=1)
    text = token_ids(ids, stepper.signature, 1).array[0]
    require_text(text.size)
    require_room(stepper, text.size - 1)
    found = np.empty(text.size - 1)
    for place, following in enumerate(text[1:]):
        (logits,) = stepper.step(TokenIds(text[np.newaxis, place : place + 1]))
        found[place] = log_probabilities(logits)[following]
        on_progress(place + 1)
    return found


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The log-probability of every token, given all logits (vocabulary,)."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    return values


def require_text(tokens: int) -> None:
    """Raise UserError unless a text has at least two tokens."""
    if tokens < 2:
        raise UserError("a text of at least 2 tokens to score", f"{tokens}", "pass more", "token")

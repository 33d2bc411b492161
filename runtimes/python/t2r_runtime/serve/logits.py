"""Changes of logits that fields of OpenAI's API request: penalties of generated tokens, and biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LogitChanges:
    """What is added to logits before a token is chosen.

    Args:
        presence: subtracted from the logit of each token that the answer contains.
        frequency: subtracted from it once for each time.
        bias: added to the logits of these tokens.
    """

    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def none(self) -> bool:
        """Whether no logit changes."""
        return not (self.presence or self.frequency or any(self.bias.values()))


class ChangedLogits:
    """The changes for one choice."""

    def __init__(self, changes: LogitChanges) -> None:
        self._changes = changes
        self._sum: NDArray[np.float32] | None = None  # (vocabulary,)
        self._counted = 0  # tokens of the answer in the sum
        self._present: set[int] = set()

    def __call__(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> NDArray[np.float32]:
        """The changed logits (vocabulary,) after the generated tokens so far."""
        if self._sum is None:
            self._sum = np.zeros(logits.size, np.float32)
            self._sum[list(self._changes.bias)] = list(self._changes.bias.values())
        for token in tokens[self._counted :]:
            self._sum[token] -= self._changes.frequency + (token not in self._present) * self._changes.presence
            self._present.add(token)
        self._counted = len(tokens)
        return logits + self._sum

"""The latest tokens that a decoder has read, for penalties (t2r_runtime.contract.penalties)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RECENT = 1 << 16  # tokens kept per text, so that memory is bounded
NOTHING = -1  # padding before shorter texts


class History:
    """The latest tokens of `batch` texts, aligned at their ends."""

    def __init__(self, batch: int) -> None:
        self._tokens = np.empty((batch, 0), np.int32)  # capacity beyond the first `_used`
        self._used = 0

    def clear(self) -> None:
        """Remove all tokens."""
        self._used = 0

    def add(self, ids: NDArray[np.int64]) -> None:
        """Append tokens (B, T)."""
        ids = ids[:, -RECENT:]
        end = self._used + ids.shape[1]
        if end > self._tokens.shape[1]:
            kept = self._recent()
            end = kept.shape[1] + ids.shape[1]
            self._tokens = np.empty((len(kept), 2 * end), np.int32)
            self._tokens[:, : kept.shape[1]] = kept
        self._tokens[:, end - ids.shape[1] : end] = ids
        self._used = end

    def forget(self, count: int) -> None:
        """Remove the last `count` tokens of each text; they must be the latest added."""
        self._used -= count

    def add_rows(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Append the first `counts` (B,) of ids (B, T)."""
        if (counts == counts[0]).all():
            return self.add(ids[:, : counts[0]])
        self._align([np.append(self.of(row), ids[row, :count]) for row, count in enumerate(counts)])

    def of(self, row: int) -> NDArray[np.int64]:
        """The latest tokens of a text (T,), oldest first, T at most `RECENT`."""
        text = self._recent()[row]
        return np.asarray(text[text != NOTHING], np.int64)

    @classmethod
    def of_rows(cls, parts: Sequence[tuple[History, Sequence[int] | NDArray[np.int64]]]) -> History:
        """Concatenate rows of histories."""
        texts = [history.of(int(row)) for history, rows in parts for row in rows]
        made = cls(len(texts))
        made._align(texts)
        return made

    def _align(self, texts: Sequence[NDArray[np.int64]]) -> None:
        """Replace all texts."""
        self._used = max(map(len, texts))
        self._tokens = np.full((len(texts), self._used), NOTHING, np.int32)
        for row, text in enumerate(texts):
            self._tokens[row, self._used - len(text) :] = text

    def _recent(self) -> NDArray[np.int32]:
        return self._tokens[:, max(self._used - RECENT, 0) : self._used]

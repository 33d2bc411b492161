"""What a decoder has read, token by token: what penalties look back on (t2r_runtime.contract.penalties).

The states hold a text in a fixed size and no longer tell its tokens. So these are kept beside them, but no more than
the last `RECENT` of a text: a decoder that runs without end must not grow without end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RECENT = 1 << 16  # tokens of each text
NOTHING = -1  # before the first token of a text that is shorter than another


class History:
    """The last tokens of `batch` texts, which end side by side; none so far."""

    def __init__(self, batch: int) -> None:
        self._tokens = np.empty((batch, 0), np.int32)  # with room behind the first `_used`
        self._used = 0

    def clear(self) -> None:
        """Back to the start of all texts."""
        self._used = 0

    def add(self, ids: NDArray[np.int64]) -> None:
        """One more token or several of each text, (B, T)."""
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
        """Without the last so many tokens of each text, which have just been added."""
        self._used -= count

    def add_rows(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """The first so many of ids (B, T) of each text, counts (B,)."""
        if (counts == counts[0]).all():
            return self.add(ids[:, : counts[0]])
        read = [History(1) for _ in counts]
        for row, (history, tokens, count) in enumerate(zip(read, ids, counts, strict=True)):
            history.add(np.append(self.of(row), tokens[:count])[np.newaxis])
        together = History.of_rows([(history, [0]) for history in read])
        self._tokens, self._used = together._tokens, together._used

    def of(self, row: int) -> NDArray[np.int64]:
        """The last tokens of a text, oldest first (T,), T at most `RECENT`."""
        text = self._recent()[row]
        return np.asarray(text[text != NOTHING], np.int64)

    @classmethod
    def of_rows(cls, parts: Sequence[tuple[History, Sequence[int] | NDArray[np.int64]]]) -> History:
        """Rows of histories, one below the other."""
        texts = [history.of(int(row)) for history, rows in parts for row in rows]
        made = cls(len(texts))
        made._used = max(map(len, texts))
        made._tokens = np.full((len(texts), made._used), NOTHING, np.int32)
        for row, text in enumerate(texts):
            made._tokens[row, made._used - len(text) :] = text
        return made

    def _recent(self) -> NDArray[np.int32]:
        return self._tokens[:, max(self._used - RECENT, 0) : self._used]

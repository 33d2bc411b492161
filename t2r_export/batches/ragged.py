"""Rows of different lengths in one tensor, and batches of pairs of similar length, to minimize padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Concatenated rows of tokens."""

    tokens: Tensor  # (N,) int32
    starts: Tensor  # (rows + 1,) int64, start of each row and end of the last

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """From lists of token ids."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = np.fromiter((token for row in rows for token in row), np.int32, int(lengths.sum()))
        return cls(torch.from_numpy(tokens), torch.from_numpy(np.concatenate([[0], lengths.cumsum()])))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Tensor:
        """(rows,) int64."""
        return self.starts.diff()

    def padded(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Rows by index (B,) int64, zero-padded to (B, longest) int64; and their lengths (B,) int64."""
        lengths = self.lengths[chosen]
        columns = torch.arange(int(lengths.max()))
        inside = columns < lengths[:, None]
        places = (self.starts[chosen][:, None] + columns).where(inside, 0)
        return self.tokens[places].long().where(inside, 0), lengths


def by_length(first: Tensor, second: Tensor, most: int, random: np.random.Generator | None = None) -> list[Tensor]:
    """Batches of pairs of similar length, as indices; every pair is in one batch.

    Args:
        first, second: (N,) int64, lengths of both sides.
        most: maximum tokens per batch, both sides with padding. A longer pair has its own batch.
        random: shuffles pairs of equal length; None keeps their order. Batch sizes depend only on the lengths.
    """
    ties = np.arange(len(first)) if random is None else random.permutation(len(first))
    order = np.lexsort((ties, first.numpy(), second.numpy()))
    one, other = first.numpy()[order].tolist(), second.numpy()[order].tolist()
    cuts, begin, widest = [], 0, 0
    for place, length in enumerate(one):
        widest = max(widest, length)
        if place > begin and (place - begin + 1) * (widest + other[place]) > most:
            cuts.append(place)
            begin, widest = place, length
    return [torch.from_numpy(part) for part in np.split(order, cuts)]


class ByLength:
    """Batches of `by_length`, shuffled as a function of seed and step: no state to save."""

    def __init__(self, first: Tensor, second: Tensor, most: int, seed: int) -> None:
        """See `by_length`; requires at least one pair."""
        self.first, self.second, self.most, self.seed = first, second, most, seed
        self.count = len(by_length(first, second, most))  # batches per epoch
        self._epoch, self._batches = -1, [torch.zeros(0, dtype=torch.int64)]

    def __call__(self, step: int) -> Tensor:
        """Indices of the pairs of a step, counted from 0."""
        epoch, place = divmod(step, self.count)
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            batches = by_length(self.first, self.second, self.most, random)
            self._epoch, self._batches = epoch, [batches[n] for n in random.permutation(self.count)]
        return self._batches[place]

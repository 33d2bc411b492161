"""Batches of text windows or of translation pairs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer


@dataclass(frozen=True)
class Batch:
    """Sequences for a loss or an evaluation.

    Packed windows predict every token, windows of one document only its tokens, and pairs only target tokens without
    start tokens and padding.
    """

    ids: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, the token after each id
    start: Tensor | None = None  # (B,) int32, start positions of the student; None: 0
    source: Tensor | None = None  # (B, M) int64, padded
    source_lengths: Tensor | None = None  # (B,) int64
    places: Tensor | None = None  # (N,) int64, indices of predicted rows in (B·T); None: all

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def count(self) -> int:
        """Number of predicted tokens."""
        return self.ids.numel() if self.places is None else len(self.places)

    def predicted(self, rows: Tensor) -> Tensor:
        """Select the rows (B·T, …) whose next token is predicted: (count, …)."""
        return rows if self.places is None else rows.index_select(0, self.places)

    @property
    def sequences(self) -> Tensor:
        """Sequence number of each predicted token, (count,) int64."""
        numbers = torch.arange(len(self), device=self.ids.device)
        return self.predicted(numbers.repeat_interleave(self.ids.shape[1]))

    @property
    def labels(self) -> Tensor:
        """Predicted tokens, (count,) int64."""
        return self.predicted(self.targets.flatten())

    def to(self, device: torch.device) -> Batch:
        """Move the batch to a device."""
        moved: dict[str, Any] = {k: v.to(device, non_blocking=True) for k, v in self._tensors().items()}
        return dataclasses.replace(self, **moved)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def rows(self, chosen: slice) -> Batch:
        """Some of the sequences, with unchanged padding."""
        parts: dict[str, Any] = {name: value[chosen] for name, value in self._tensors().items()}
        if self.places is not None:
            mask = torch.zeros(self.ids.numel(), dtype=torch.bool, device=self.ids.device)
            mask[self.places] = True
            parts["places"] = mask.view_as(self.ids)[chosen].flatten().nonzero().squeeze(1)
        return dataclasses.replace(self, **parts)

    def split(self, size: int) -> list[Batch]:
        """Split into batches of `size` sequences; the last may have fewer."""
        return [self.rows(slice(first, first + size)) for first in range(0, len(self), size)]


class Batches(Protocol):
    """Training, validation and test batches of a run."""

    test: list[Batch]

    def __call__(self, step: int) -> Batch:
        """The global batch of a step, counted from 0, on the CPU."""
        ...

    def validation(self, shares: int) -> list[Batch]:
        """Validation batches, each of the size of a training batch divided by `shares`."""
        ...


def initial_states(model: Transformer, batch: Batch) -> State[Tensor]:
    """Initial states of a model for a batch, with encoded sources for translators."""
    if batch.source is None or batch.source_lengths is None:
        return model.init_state(len(batch))
    return model.start(batch.source, batch.source_lengths)


def window_batch(windows: Tensor, start: Tensor | None = None) -> Batch:
    """A batch of windows (B, T+1) int64."""
    return Batch(windows[:, :-1], windows[:, 1:], start)


def window_batches(windows: Tensor, size: int = 16) -> list[Batch]:
    """Windows (N, T+1) int64 in batches of `size`."""
    return [window_batch(part) for part in windows.split(size)]

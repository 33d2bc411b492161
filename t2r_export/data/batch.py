"""A batch: what is read, and what is to be predicted behind it. Windows of a text, or pairs with their sources."""

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
    """Sequences that a stage computes its loss from, and that an evaluation measures.

    Of windows every token is predicted. Of pairs the target's are, and neither what it begins with nor the padding.
    """

    ids: Tensor  # (B, T) int64, read
    targets: Tensor  # (B, T) int64, the token behind each of them
    start: Tensor | None = None  # (B,) int32, the student's position at their beginning; None: 0
    source: Tensor | None = None  # (B, M) int64, padded
    source_lengths: Tensor | None = None  # (B,) int64
    places: Tensor | None = None  # (N,) int64 in rows (B·T), of what is predicted; None: everything

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def count(self) -> int:
        """Tokens that are predicted."""
        return self.ids.numel() if self.places is None else len(self.places)

    def predicted(self, rows: Tensor) -> Tensor:
        """Of rows (B·T, …), one a token, those whose next token is predicted: (count, …)."""
        return rows if self.places is None else rows.index_select(0, self.places)

    @property
    def sequences(self) -> Tensor:
        """Of which sequence each token is that is predicted, (count,) int64."""
        numbers = torch.arange(len(self), device=self.ids.device)
        return self.predicted(numbers.repeat_interleave(self.ids.shape[1]))

    @property
    def labels(self) -> Tensor:
        """What is to be predicted, (count,) int64."""
        return self.predicted(self.targets.flatten())

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        moved: dict[str, Any] = {k: v.to(device, non_blocking=True) for k, v in self._tensors().items()}
        return dataclasses.replace(self, **moved)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def rows(self, chosen: slice) -> Batch:
        """Some of its sequences, as wide as all of them."""
        parts: dict[str, Any] = {name: value[chosen] for name, value in self._tensors().items()}
        if self.places is not None:
            mask = torch.zeros(self.ids.numel(), dtype=torch.bool, device=self.ids.device)
            mask[self.places] = True
            parts["places"] = mask.view_as(self.ids)[chosen].flatten().nonzero().squeeze(1)
        return dataclasses.replace(self, **parts)

    def split(self, size: int) -> list[Batch]:
        """The batch in pieces of so many sequences; the last may have fewer."""
        return [self.rows(slice(first, first + size)) for first in range(0, len(self), size)]


class Batches(Protocol):
    """What a run is trained on and measured with: of a text, or of pairs."""

    test: list[Batch]  # what reports are measured on

    def __call__(self, step: int) -> Batch:
        """The global batch of a step, counted from 0, on the CPU."""
        ...

    def validation(self, processes: int) -> list[Batch]:
        """What validations during training measure, in batches of what one of so many processes trains on."""
        ...


def initial_states(model: Transformer, batch: Batch) -> State[Tensor]:
    """What a model reads a batch from: its initial states, with what it takes from the sources where there are any."""
    if batch.source is None or batch.source_lengths is None:
        return model.init_state(len(batch))
    return model.start(batch.source, batch.source_lengths)


def window_batch(windows: Tensor, start: Tensor | None = None) -> Batch:
    """A batch of windows (B, T+1) int64."""
    return Batch(windows[:, :-1], windows[:, 1:], start)


def window_batches(windows: Tensor, size: int = 16) -> list[Batch]:
    """Windows (N, T+1) int64 in batches of so many."""
    return [window_batch(part) for part in windows.split(size)]

"""States that a provider keeps in place: a run reads and writes one buffer, so that no step copies them.

The provider t2r takes two options of a run. One is the number of rows of the growing caches: their buffers have room
for more tokens, and a run reads those rows and writes the next one. The other is for windows, the last rows of keys and
values, oldest first: the number of tokens read since they were in order. The oldest row is then at this number modulo
their length, and a run that succeeds replaces it by the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.state_spec import GROWING, StateSpec
from t2r_runtime.session.gather import Rows

if TYPE_CHECKING:
    import onnxruntime as ort

MIN_ROOM = 64  # tokens for which a buffer has room at least
NO_WINDOW = "that is no window in place"  # in the provider's error where it cannot keep a state in place


def is_window(spec: StateSpec) -> bool:
    """Whether a state is the last rows of keys or values, by its name (docs/mixers.md) and shape (B, G, W, d)."""
    named = spec.name.partition(".")[0] in ("k", "v", "k_scale", "v_scale")
    return named and not spec.grows and not spec.constant and len(spec.shape) == 4 and spec.shape[2] != 1


class Reserve:
    """Buffers of the caches and windows of `batch` sequences, without content at first.

    Args:
        specs: the growing states, whose lengths are equal.
        windows: those that may be windows in place.
        options: names of the run options for the number of rows, and of tokens.
        empty: returns memory of a shape and dtype.
    """

    def __init__(
        self,
        specs: Sequence[StateSpec],
        windows: Sequence[StateSpec],
        options: tuple[str, str],
        empty: Callable[[tuple[int, ...], str], ort.OrtValue],
    ) -> None:
        self.buffers: dict[str, ort.OrtValue] = {}  # (B, G, capacity, d), by name
        self.windows = {spec.name: spec for spec in windows}
        self.turned = 0  # tokens that the windows have read here
        self.holds = False  # whether the states are here
        self.follows = False  # whether nothing has read or replaced them since the last step
        self._turning: dict[str, NDArray[Any]] = {}  # the windows, by name
        self._specs, self._options, self._empty = specs, options, empty
        self._rows = self._room = 0

    def make_room(self, caches: Mapping[str, ort.OrtValue], batch: int) -> bool:
        """Copy the caches here, unless they are here with room for another row; returns whether it did."""
        if self.holds and (self._rows < self._room or not self._specs):
            return False
        if self._specs:
            self._copy(caches, batch)
        return True

    def _copy(self, caches: Mapping[str, ort.OrtValue], batch: int) -> None:
        before = self.buffers  # NumPy's views do not keep them
        held = self.views() if self.holds else {name: value.numpy() for name, value in caches.items()}
        first = self._specs[0]
        rows = held[first.name].shape[first.shape.index(GROWING)]
        if not before or before[first.name].shape()[0] != batch or rows >= self._room:
            room = max(MIN_ROOM, 1 << rows.bit_length())
            self.buffers = {spec.name: self._empty(spec.dims(batch, room), spec.dtype) for spec in self._specs}
            self._room = room
        self._rows = rows
        for name, view in self.views().items():
            view[...] = held[name]

    def hold(self, values: Mapping[str, ort.OrtValue]) -> None:
        """The states are here from now on: the caches, and these values of windows, unless those are here already."""
        if not self.holds:
            self._turning, self.turned = {name: values[name].numpy() for name in self.windows}, 0
        self.holds = True

    def ordered(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """The value of a state: of a window, with its oldest row first."""
        return np.roll(rows, -self.turned, axis=2) if self.holds and name in self.windows else rows

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the rows that a step replaces if it raises, as an interrupt after the run does."""
        oldest = [rows[:, :, self.turned % rows.shape[2]] for rows in self._turning.values()]
        copies = [rows.copy() for rows in oldest]
        try:
            yield
        except BaseException:
            for rows, copy in zip(oldest, copies, strict=True):
                rows[...] = copy
            raise

    def views(self) -> dict[str, NDArray[Any]]:
        """The caches by name, (B, G, T, d); later steps do not change these rows."""
        return {
            spec.name: self.buffers[spec.name].numpy()[
                tuple(slice(self._rows) if size == GROWING else slice(None) for size in spec.shape)
            ]
            for spec in self._specs
        }

    def reorder(self, rows: Rows) -> None:
        """Take `batch` rows of the states; those that keep their place are not copied."""
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        for view in (*self.views().values(), *self._turning.values()):
            view[moved] = view[rows[moved]]

    def options(self) -> ort.RunOptions:
        """The options of the next step."""
        import onnxruntime as ort

        options = ort.RunOptions()  # changing an entry of former ones would print a warning
        of_rows, of_windows = self._options
        if self._specs:
            options.add_run_config_entry(of_rows, str(self._rows))
        if self.windows:
            options.add_run_config_entry(of_windows, str(self.turned))
        return options

    def grew(self) -> None:
        """Count the row that a step has written."""
        self._rows += 1
        self.turned += 1

"""Growing caches in buffers with room for more tokens, to which a provider appends in place.

The provider t2r takes an option of a run, the number of rows that the caches have. A cache is then one buffer, both
input and output: a run reads those rows and writes the next one, so that no step copies a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.state_spec import GROWING, StateSpec
from t2r_runtime.session.gather import Rows

if TYPE_CHECKING:
    import onnxruntime as ort

MIN_ROOM = 64  # tokens for which a buffer has room at least


class Reserve:
    """Buffers of the caches of `batch` sequences, without content at first.

    Args:
        specs: the growing states, whose lengths are equal.
        option: name of the run option for the number of rows.
        empty: returns memory of a shape and dtype.
    """

    def __init__(
        self, specs: Sequence[StateSpec], option: str, empty: Callable[[tuple[int, ...], str], ort.OrtValue]
    ) -> None:
        self.buffers: dict[str, ort.OrtValue] = {}  # (B, G, capacity, d), by name
        self.holds = False  # whether the caches are here
        self.follows = False  # whether nothing has read or replaced them since the last step
        self._specs, self._option, self._empty = specs, option, empty
        self._rows = self._room = 0

    def make_room(self, caches: Mapping[str, ort.OrtValue], batch: int) -> bool:
        """Copy the caches here, unless they are here with room for another row; returns whether it did."""
        if self.holds and self._rows < self._room:
            return False
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
        self.holds = True
        return True

    def views(self) -> dict[str, NDArray[Any]]:
        """The caches by name, (B, G, T, d); later steps do not change these rows."""
        return {
            spec.name: self.buffers[spec.name].numpy()[
                tuple(slice(self._rows) if size == GROWING else slice(None) for size in spec.shape)
            ]
            for spec in self._specs
        }

    def reorder(self, rows: Rows) -> None:
        """Take `batch` rows of the caches; those that keep their place are not copied."""
        moved = np.flatnonzero(rows != np.arange(len(rows)))
        for view in self.views().values():
            view[moved] = view[rows[moved]]

    def options(self) -> ort.RunOptions:
        """The options of the next step."""
        import onnxruntime as ort

        options = ort.RunOptions()  # changing an entry of former ones would print a warning
        options.add_run_config_entry(self._option, str(self._rows))
        return options

    def grew(self) -> None:
        """Count the row that a step has written."""
        self._rows += 1

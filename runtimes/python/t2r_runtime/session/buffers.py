"""Memory of the recurrent states of a batch, chained by name between steps.

A state of constant shape has two buffers: a step reads one and writes the other. One buffer for input and output works
on the CPU today, but operators may write before they have read, and WebGPU forbids it. A growing state, the cache of a
softmax layer, has two buffers on the CPU too, larger than its value; on a device it gets a new one at each step. The
provider t2r keeps it, and windows, in one buffer (reserve.py). A constant state, such as the encoded source, has one
buffer, replaced when its length changes.

If the provider has device memory, the buffers are in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.session.gather import Rows, gather_rows
from t2r_runtime.session.reserve import MIN_ROOM, Reserve, is_window
from t2r_runtime.session.session import Graph

if TYPE_CHECKING:
    import onnxruntime as ort

Array = NDArray[Any]
Parts = Sequence[tuple[Mapping[str, "ort.OrtValue"], Rows]]  # states by name, and rows of them


class Buffers:
    """All states of `batch` sequences, uninitialized before `reset`, `write` or `take`.

    Raises:
        UserError: the states exceed the memory limit of a graph.
    """

    def __init__(self, graph: Graph, batch: int) -> None:
        specs = graph.signature.states
        self.batch = batch
        self._graph, self._session, self._device = graph, graph.session, graph.device
        self._longest = 0  # longest source within the memory limit so far
        self._require_memory(source=1)
        self._growing = [spec for spec in specs if spec.grows]
        self._constant = [spec for spec in specs if spec.constant]
        self._chained = [spec for spec in specs if not (spec.grows or spec.constant)]
        self._fixed = [*self._chained, *self._constant]
        self._buffers = [  # constant states are added to both when their shapes are known
            {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._chained} for _ in range(2)
        ]
        self._nothing = self._empty_caches()
        self._caches: dict[str, ort.OrtValue] = {}
        self._rooms: list[dict[str, ort.OrtValue]] = [{}, {}]  # flat memory of caches on the CPU, by turn
        self._turn = 0  # index of the buffers that the next step reads
        # packed caches are parts of one tensor, to which no node appends
        apart = all(len(spec.shape) == 4 for spec in self._growing)
        windows = [spec for spec in self._chained if is_window(spec) and spec.name not in graph.apart]
        self._reserve: Reserve | None = None
        if graph.rows_option and graph.windows_option and apart and (self._growing or windows):
            options = (graph.rows_option, graph.windows_option)
            self._reserve = Reserve(self._growing, windows, options, self._empty)
        self._in_place = graph.device == "cpu"  # numpy reads and writes the memory of tensors
        self._owners: list[ort.OrtValue] = []  # keep the memory of tensors of which only the first rows are used

    def reset(self) -> None:
        """Set every state to its initial value, with sources of length 1."""
        self._turn = 0
        self._settle(copy=False)
        for spec in self._fixed:
            self._place(spec, np.full(spec.dims(self.batch), spec.initial, spec.dtype))
        self._caches = dict(self._nothing)

    def read(self, row: int | None = None) -> dict[str, Array]:
        """Copy all states, or those of one row, name → array."""
        rows = slice(None) if row is None else slice(row, row + 1)
        if self._reserve is not None and self._reserve.holds:
            held = self._reserve.views()
            values = {name: value.numpy() for name, value in self._buffers[self._turn].items()} | held
            return {name: np.array(self._reserve.ordered(name, value[rows])) for name, value in values.items()}
        return {name: np.array(value.numpy()[rows]) for name, value in self._values().items()}

    def write(self, states: Mapping[str, Array]) -> None:
        """Copy in states that `check_states` has accepted for this batch; the length of the sources may change.

        Raises:
            UserError: the states exceed the memory limit of a graph; they are unchanged then.
        """
        self._require_memory(max((spec.source_length(states[spec.name].shape) for spec in self._fixed), default=1))
        self._settle(copy=False)
        for spec in self._fixed:
            self._place(spec, states[spec.name])
        for spec in self._growing:
            cache = self._empty(states[spec.name].shape, spec.dtype)
            cache.update_inplace(np.ascontiguousarray(states[spec.name]))
            self._caches[spec.name] = cache

    def assign(self, name: str, array: Array) -> None:
        """Replace the values of one state of constant shape."""
        self._place(next(spec for spec in self._chained if spec.name == name), array)

    def take(self, parts: Sequence[tuple[Buffers, Rows]], source: int | None = None) -> None:
        """Concatenate rows of states of the same graph, `batch` in all. Self may be one of the parts.

        Caches must have equal lengths. Sources of different lengths are padded with zeros, which no step reads.

        Args:
            source: length to which sources are cut; None is that of the longest.

        Raises:
            UserError: the states exceed the memory limit of a graph; they are unchanged then.
        """
        values = [(states._values(), rows) for states, rows in parts]
        self._take_sources(values, source)
        self._take_chained(values)

    def reorder(self, rows: Rows) -> None:
        """Take `batch` rows of these states, each in place of one with the same source. Constant states are kept."""
        if self._reserve is None or not self._reserve.holds:
            return self._take_chained([(self._values(), rows)])
        self._reserve.reorder(rows)
        self._take_fixed([(self._buffers[self._turn], rows)], self._reserve.windows)

    def keep(self, rows: Rows, sources: Rows) -> None:
        """Keep these rows only, on the CPU without new memory.

        Args:
            sources: rows of constant states; only rows whose index changes are copied.
        """
        before = self._values()
        self.batch = len(rows)
        for spec in self._chained:
            for buffers in self._buffers:
                buffers[spec.name] = self._first_rows(buffers[spec.name], spec.dtype)
        for spec in self._constant:
            self._replace(spec, self._kept(before[spec.name], sources, spec.dtype))
        self._nothing = self._empty_caches()
        self._take_chained([(before, rows)])

    def put(self, row: int, other: Buffers) -> None:
        """Replace a row by the single row of other states of the same graph.

        In place on the CPU, unless sources differ in length; else all rows are copied.
        """
        ours, theirs = self._values(), other._values()
        if self._in_place and all(value.shape()[1:] == theirs[name].shape()[1:] for name, value in ours.items()):
            for name, value in ours.items():
                value.numpy()[row] = theirs[name].numpy()[0]
            return
        parts = ((self, np.arange(row)), (other, np.zeros(1, np.int64)), (self, np.arange(row + 1, self.batch)))
        self.take([(states, rows) for states, rows in parts if rows.size])

    def _empty_caches(self) -> dict[str, ort.OrtValue]:
        return {spec.name: self._empty(spec.dims(self.batch), spec.dtype) for spec in self._growing}

    def _next_cache(self, spec: StateSpec, length: int) -> ort.OrtValue:
        """Memory that the next run writes a cache of `length` tokens to.

        On the CPU it is reused, with room for more tokens: new memory costs a page fault per 4 KiB.
        """
        import onnxruntime as ort

        shape = spec.dims(self.batch, length)
        if not self._in_place:
            return self._empty(shape, spec.dtype)
        rooms, count = self._rooms[1 - self._turn], math.prod(shape)
        if spec.name not in rooms or math.prod(rooms[spec.name].shape()) < count:
            room = length + max(MIN_ROOM, length // 8)
            rooms[spec.name] = self._empty((math.prod(spec.dims(self.batch, room)),), spec.dtype)
        return ort.OrtValue.ortvalue_from_numpy(rooms[spec.name].numpy()[:count].reshape(shape))

    def _first_rows(self, value: ort.OrtValue, dtype: str) -> ort.OrtValue:
        """Memory for `batch` rows: on the CPU that of the first rows of `value`, else new memory."""
        import onnxruntime as ort

        if not self._in_place:
            return self._empty((self.batch, *value.shape()[1:]), dtype)
        self._owners.append(value)
        return ort.OrtValue.ortvalue_from_numpy(value.numpy()[: self.batch])

    def _kept(self, value: ort.OrtValue, rows: Rows, dtype: str) -> ort.OrtValue:
        """Keep `batch` rows of a tensor; in place, only rows that move are copied."""
        out = self._first_rows(value, dtype)
        if self._in_place:
            array, moved = value.numpy(), np.flatnonzero(rows != np.arange(len(rows)))
            array[moved] = array[rows[moved]]
        else:
            gather_rows([(value, rows)], out, dtype, self._device)
        return out

    def _take_chained(self, parts: Parts) -> None:
        for spec in self._growing:
            found = [(value[spec.name], rows) for value, rows in parts]
            out = self._empty((self.batch, *found[0][0].shape()[1:]), spec.dtype)
            gather_rows(found, out, spec.dtype, self._device)
            self._caches[spec.name] = out
        self._take_fixed(parts)

    def _take_fixed(self, parts: Parts, but: Collection[str] = ()) -> None:
        there = 1 - self._turn
        for spec in self._chained:
            if spec.name in but:
                continue
            found = [(value[spec.name], rows) for value, rows in parts]
            gather_rows(found, self._buffers[there][spec.name], spec.dtype, self._device)
        self._turn = there

    def _take_sources(self, parts: Parts, source: int | None) -> None:
        named = [(spec, value[spec.name]) for spec in self._constant for value, _ in parts]
        lengths = [spec.source_length(tuple(value.shape())) for spec, value in named]
        longest = max(lengths, default=1) if source is None else source
        self._require_memory(longest)
        for spec in self._constant:
            found = [(value[spec.name], rows) for value, rows in parts]
            out = self._source_buffer(spec, longest, [value for value, _ in found])
            if all(value.shape()[1:] == out.shape()[1:] for value, _ in found):
                gather_rows(found, out, spec.dtype, self._device)
            else:
                whole = out.numpy() if self._in_place else np.empty(tuple(out.shape()), spec.dtype)
                _pad_into(whole, [(value.numpy(), rows) for value, rows in found])
                if not self._in_place:
                    out.update_inplace(whole)
            if out is not self._buffers[0].get(spec.name):
                self._replace(spec, out)

    def _source_buffer(self, spec: StateSpec, length: int, read: Sequence[ort.OrtValue]) -> ort.OrtValue:
        """The buffer of a constant state to write to: the current one, unless its length differs or it is read."""
        shape, now = spec.dims(self.batch, source=length), self._buffers[0].get(spec.name)
        if now is not None and tuple(now.shape()) == shape and not any(value is now for value in read):
            return now
        return self._empty(shape, spec.dtype)

    def _place(self, spec: StateSpec, array: Array) -> None:
        """Copy a fixed state to the buffer that the next step reads."""
        buffer = self._buffers[self._turn].get(spec.name)
        if buffer is None or tuple(buffer.shape()) != array.shape:  # a new source, or one of another length
            buffer = self._empty(array.shape, spec.dtype)
            self._replace(spec, buffer)
        buffer.update_inplace(np.ascontiguousarray(array))

    def _replace(self, spec: StateSpec, buffer: ort.OrtValue) -> None:
        """Replace the buffer of a constant state."""
        for buffers in self._buffers:
            buffers[spec.name] = buffer

    def _require_memory(self, source: int) -> None:
        if source > self._longest:
            self._graph.signature.require_memory(self.batch, self._graph.max_state_bytes, source)
            self._longest = source

    def _values(self) -> dict[str, ort.OrtValue]:
        self._settle()
        return self._buffers[self._turn] | self._caches

    def _settle(self, copy: bool = True) -> None:
        """Take the states out of the reserve, unless others replace them."""
        if self._reserve is None:
            return
        if self._reserve.holds and copy:
            for name, view in self._reserve.views().items():
                self._caches[name] = self._empty(view.shape, str(view.dtype))
                self._caches[name].update_inplace(np.ascontiguousarray(view))
        for spec in self._reserve.windows.values() if self._reserve.holds else ():
            held, out = self._buffers[self._turn][spec.name], self._empty(spec.dims(self.batch), spec.dtype)
            if copy:
                out.update_inplace(self._reserve.ordered(spec.name, held.numpy()))
            self._buffers[self._turn][spec.name] = out
            self._forget_bindings()
        self._reserve.holds = self._reserve.follows = False

    def _forget_bindings(self) -> None:
        """Drop what is bound to former buffers."""

    def _empty(self, shape: tuple[int, ...], dtype: str) -> ort.OrtValue:
        import onnxruntime as ort

        kind = np.dtype(dtype).type
        if self._device == "webgpu":  # memory belongs to a session
            return self._session.create_ortvalue_from_shape_and_type(shape, kind, self._device)
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, self._device, 0)


def _pad_into(whole: Array, parts: Sequence[tuple[Array, Rows]]) -> None:
    """Concatenate rows of arrays, each cut or zero-padded to the sizes of `whole`, which must not be one of them."""
    first = 0
    for array, rows in parts:
        out = whole[first : first + len(rows)]
        here = (slice(None), *(slice(min(sizes)) for sizes in zip(whole.shape[1:], array.shape[1:], strict=True)))
        if out[here].shape != out.shape:
            out[...] = 0
        out[here] = array[here][rows]
        first += len(rows)

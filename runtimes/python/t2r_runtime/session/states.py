"""The recurrent states between two steps: chained by name, in two buffers that change places.

A state of constant shape gets two buffers and two bindings made once: one reads the first and writes the second, the
other the reverse. One buffer as both input and output gives the right numbers on the CPU today, but the graph's
operators are free to write before they have read; WebGPU forbids it. With the bindings ready, a step rebinds nothing.

A state that no step changes, what an encoder has made of a source, has one buffer in the place of both, and another one
where its length is another: the bindings are then made again.

A state that grows (the cache of a softmax layer) is another size at each step: the output gets a buffer of its own,
which is the next step's input. (Left to ONNX Runtime's allocation, an output of a version before 1.30 is lost when its
binding is used again.)

With a provider that has memory of its own, states, ids and logits live there: only the token goes in and only the
logits come out. What is bound in another memory than the one its reader wants is copied when it is bound, and a later
change of it is never seen; so where two providers share a graph every input is bound again at each step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import (
    DRAFT_CHECK,
    GENERATE,
    GROWING,
    INPUT_IDS,
    KEEP,
    LOG_SUM,
    LOGITS,
    PREFILL,
    TOP_LOGITS,
    TOP_TOKENS,
    StateSpec,
)
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.gather import Rows, gather_rows
from t2r_runtime.session.interface import GENERATED
from t2r_runtime.session.session import Graph

if TYPE_CHECKING:
    import onnxruntime as ort

Array = NDArray[Any]
LOGITS_ALONE: tuple[str, ...] = (LOGITS,)
TOP_ALONE: tuple[str, ...] = (TOP_LOGITS, TOP_TOKENS)
TOP_LOG: tuple[str, ...] = (TOP_LOGITS, TOP_TOKENS, LOG_SUM)
_captures = itertools.count(1)  # numbers of CUDA graphs; a session knows its graphs by them


class States:
    """All states of `batch` sequences and the bindings that chain them: no numbers before `reset`, `write` or `take`.

    Raises:
        UserError: the states of that many sequences exceed what one graph may ask for.
    """

    def __init__(self, graph: Graph, batch: int) -> None:
        specs = graph.signature.states
        self.batch = batch
        self._graph, self._session, self._device = graph, graph.session, graph.device
        self._longest = 0  # the longest sources that were found to fit
        self._require_memory(source=1)
        self._rebind = graph.device != "cpu" and len(graph.placement) > 1
        self._captured = graph.captured
        self._graph_ids: defaultdict[tuple[int, tuple[str, ...]], int] = defaultdict(_captures.__next__)
        self._fixed = [spec for spec in specs if not spec.grows]
        self._growing = [spec for spec in specs if spec.grows]
        self._ids = self._empty((batch,), "int64")
        self._results: dict[str, ort.OrtValue] = {}  # of what was wanted so far
        self._constant = [spec for spec in self._fixed if spec.constant]
        self._chained = [spec for spec in self._fixed if not spec.constant]
        self._buffers = [  # of a constant one, which is in both, once its shape is known
            {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._chained} for _ in range(2)
        ]
        self._nothing = {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._growing}
        self._caches: dict[str, ort.OrtValue] = {}
        self._unchecked: dict[str, ort.OrtValue] = {}  # the caches before the latest check, until the next run
        self._turn = 0  # the buffer, and the binding, that the next step reads from
        self._bindings: dict[tuple[str, ...], list[ort.IOBinding]] = {}  # by what is wanted, of each turn

    def reset(self) -> None:
        """Every state to its initial value, of a source of length 1."""
        self._turn = 0
        for spec in self._fixed:
            self._place(spec, np.full(spec.dims(self.batch), spec.initial, spec.dtype))
        self._caches = dict(self._nothing)

    def read(self) -> dict[str, Array]:
        """Copies of all states, name → array."""
        return {name: np.array(value.numpy()) for name, value in self._values().items()}

    def write(self, states: Mapping[str, Array]) -> None:
        """Copy in states that `check_states` has accepted for this batch; sources may have another length than before.

        Raises:
            UserError: with sources so long, the states exceed what one graph may ask for. All is as before then.
        """
        self._require_memory(max((spec.source_length(states[spec.name].shape) for spec in self._fixed), default=1))
        for spec in self._fixed:
            self._place(spec, states[spec.name])
        for spec in self._growing:
            cache = self._empty(states[spec.name].shape, spec.dtype)
            cache.update_inplace(np.ascontiguousarray(states[spec.name]))
            self._caches[spec.name] = cache

    def take(self, parts: Sequence[tuple[States, Rows]], source: int | None = None) -> None:
        """Become rows of states of the same graph, one below the other: as many as `batch`.

        Caches have one length in all parts. Self may be one of them: what is written is never what is read. Sources may
        have several lengths: they are filled up with zeros, which no step looks at.

        Args:
            source: the length that the sources are cut to; None is that of the longest.

        Raises:
            UserError: with sources so long, the states exceed what one graph may ask for. All is as before then.
        """
        values = [(states._values(), rows) for states, rows in parts]
        self._take_sources(values, source)
        self._take_chained(values)

    def reorder(self, rows: Rows) -> None:
        """Become rows of these states, each in the place of one with the same source: `batch` of them.

        What no step changes is not copied.
        """
        self._take_chained([(self._values(), rows)])

    def _take_chained(self, parts: Sequence[tuple[Mapping[str, ort.OrtValue], Rows]]) -> None:
        there = 1 - self._turn
        for spec in self._chained:
            found = [(value[spec.name], rows) for value, rows in parts]
            gather_rows(found, self._buffers[there][spec.name], spec.dtype, self._device)
        for spec in self._growing:
            found = [(value[spec.name], rows) for value, rows in parts]
            out = self._empty((self.batch, *found[0][0].shape()[1:]), spec.dtype)
            gather_rows(found, out, spec.dtype, self._device)
            self._caches[spec.name] = out
        self._turn = there

    def _take_sources(self, parts: Sequence[tuple[Mapping[str, ort.OrtValue], Rows]], source: int | None) -> None:
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
                out.update_inplace(_side_by_side([(value.numpy(), rows) for value, rows in found], tuple(out.shape())))
            if out is not self._buffers[0].get(spec.name):
                self._bind_source(spec, out)

    def _source_buffer(self, spec: StateSpec, length: int, read: Sequence[ort.OrtValue]) -> ort.OrtValue:
        """Where a constant state of sources so long may be written: the one it has, unless that is read or another's
        length."""
        shape, now = spec.dims(self.batch, source=length), self._buffers[0].get(spec.name)
        if now is not None and tuple(now.shape()) == shape and not any(value is now for value in read):
            return now
        return self._empty(shape, spec.dtype)

    def step(self, ids: NDArray[np.int64], wanted: tuple[str, ...] = LOGITS_ALONE) -> list[Array]:
        """Read one token of each sequence, ids (B,) → the outputs `wanted`, as views that the next step overwrites.

        What is not wanted stays where it was computed. A step that raises leaves the states as they were.
        """
        # a column of a caller's ids, say: ONNX Runtime 1.24 reads it as if its numbers lay side by side
        self._ids.update_inplace(np.ascontiguousarray(ids))
        if wanted not in self._bindings:
            self._bindings[wanted] = [self._bind(past, wanted) for past in range(2)]
        binding = self._bindings[wanted][self._turn]
        if self._rebind:
            self._bind_inputs(binding, self._turn, self._ids)
        return self._run(self._session, binding, 1, wanted)

    def prefill(self, ids: NDArray[np.int64], wanted: tuple[str, ...] = LOGITS_ALONE) -> list[Array]:
        """`step` for many tokens of each sequence, ids (B, T): in one run of the prefill graph, where there is one."""
        if PREFILL not in self._graph.companions or ids.shape[1] == 1:
            for column in ids.T:
                results = self.step(column, wanted)
            return results
        many, fed = self._graph.companions[PREFILL](), self._empty(ids.shape, "int64")
        fed.update_inplace(np.ascontiguousarray(ids))
        return self._run(many, self._bind(self._turn, wanted, many, fed), ids.shape[1], wanted)

    def check(self, ids: NDArray[np.int64], keep: NDArray[np.int64], wanted: tuple[str, ...]) -> list[Array]:
        """Read the first `keep` (B,) of ids (B, N) → the outputs `wanted` behind each of the N, (B, N, ·).

        Of caches that grow all rows keep as many.
        """
        session, fed = self._graph.companions[DRAFT_CHECK](), self._empty(ids.shape, "int64")
        fed.update_inplace(np.ascontiguousarray(ids))
        binding = session.io_binding()
        self._bind_inputs(binding, self._turn, fed)
        binding.bind_cpu_input(KEEP, keep)
        for name in wanted:
            binding.bind_output(name)
        self._bind_outputs(binding, self._turn)
        before = self._caches
        self._run(session, binding, int(keep[0]), ())
        self._unchecked = before
        return [np.asarray(value.numpy()) for value in binding.get_outputs()[: len(wanted)]]

    def uncheck(self) -> None:
        """Back to the states before the latest `check`, which still lie in the other buffer."""
        self._turn = 1 - self._turn
        self._caches = self._unchecked

    def generate(self, token: int, feeds: Mapping[str, Array]) -> NDArray[np.int64]:
        """Let the generation graph read the token and go on from the states of one sequence → new tokens (N,)."""
        session = self._graph.companions[GENERATE]()
        self._ids.update_inplace(np.array([token]))
        binding = session.io_binding()
        self._bind_inputs(binding, self._turn, self._ids)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(GENERATED)
        self._bind_outputs(binding, self._turn)
        self._call(session, binding)
        self._turn = 1 - self._turn
        return np.array(binding.get_outputs()[0].numpy())

    def _place(self, spec: StateSpec, array: Array) -> None:
        """Copy a state of fixed shape to where the next step reads it."""
        buffer = self._buffers[self._turn].get(spec.name)
        if buffer is None or tuple(buffer.shape()) != array.shape:  # a source, the first or of another length
            buffer = self._empty(array.shape, spec.dtype)
            self._bind_source(spec, buffer)
        buffer.update_inplace(np.ascontiguousarray(array))

    def _bind_source(self, spec: StateSpec, buffer: ort.OrtValue) -> None:
        """Another tensor in the place of one that no step changes."""
        for buffers in self._buffers:
            buffers[spec.name] = buffer
        self._bindings, self._graph_ids = {}, defaultdict(_captures.__next__)  # those of another tensor

    def _require_memory(self, source: int) -> None:
        if source > self._longest:
            self._graph.signature.require_memory(self.batch, self._graph.max_state_bytes, source)
            self._longest = source

    def _values(self) -> dict[str, ort.OrtValue]:
        return self._buffers[self._turn] | self._caches

    def _run(
        self, session: ort.InferenceSession, binding: ort.IOBinding, tokens: int, wanted: tuple[str, ...]
    ) -> list[Array]:
        grown: dict[str, ort.OrtValue] = {}
        for spec in self._growing:
            cache = self._caches[spec.name]
            length = cache.shape()[spec.shape.index(GROWING)]
            grown[spec.name] = self._empty(spec.dims(self.batch, length + tokens), spec.dtype)
            binding.bind_ortvalue_input(spec.past, cache)
            binding.bind_ortvalue_output(spec.present, grown[spec.name])
        try:
            self._call(session, binding, self._run_options(wanted) if session is self._session else None)
        finally:
            self._let_go(binding)
        self._caches, self._unchecked = grown, {}
        self._turn = 1 - self._turn
        return [np.asarray(self._results[name].numpy()) for name in wanted]

    def _call(
        self, session: ort.InferenceSession, binding: ort.IOBinding, options: ort.RunOptions | None = None
    ) -> None:
        try:
            session.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            raise UserError("the graph to run a step", printable(error), "export the model again", "runtime") from error

    def _bind(
        self,
        past: int,
        wanted: tuple[str, ...],
        session: ort.InferenceSession | None = None,
        ids: ort.OrtValue | None = None,
    ) -> ort.IOBinding:
        binding = (session or self._session).io_binding()
        self._bind_inputs(binding, past, ids or self._ids)
        for name in wanted:
            if name not in self._results:
                self._results[name] = self._empty(*self._result(name))
            binding.bind_ortvalue_output(name, self._results[name])
        self._bind_outputs(binding, past)
        self._let_go(binding)
        return binding

    def _result(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of an output of the step that is no state."""
        if name == LOG_SUM:
            return (self.batch,), "float32"
        columns = self._graph.signature.vocab_size if name == LOGITS else self._graph.signature.top_k
        assert columns is not None, name
        return (self.batch, columns), "int64" if name == TOP_TOKENS else "float32"

    def _bind_inputs(self, binding: ort.IOBinding, past: int, ids: ort.OrtValue) -> None:
        binding.bind_ortvalue_input(INPUT_IDS, ids)
        for spec in self._fixed:
            binding.bind_ortvalue_input(spec.past, self._buffers[past][spec.name])

    def _bind_outputs(self, binding: ort.IOBinding, past: int) -> None:
        for spec in self._chained:
            binding.bind_ortvalue_output(spec.present, self._buffers[1 - past][spec.name])

    def _run_options(self, wanted: tuple[str, ...]) -> ort.RunOptions | None:
        """A CUDA graph replays the addresses it was captured with: each binding needs a graph of its own.

        Other states of the same session (of another batch, say) lie elsewhere: no number is ever used again.
        """
        if not self._captured:
            return None
        import onnxruntime as ort

        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._graph_ids[self._turn, wanted]))
        return options

    def _let_go(self, binding: ort.IOBinding) -> None:
        """Let a binding hold no cache while the other one works."""
        for spec in self._growing:
            binding.bind_ortvalue_input(spec.past, self._nothing[spec.name])
            binding.bind_output(spec.present, self._device)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> ort.OrtValue:
        import onnxruntime as ort

        kind = np.dtype(dtype).type
        if self._device == "webgpu":  # its memory belongs to a session
            return self._session.create_ortvalue_from_shape_and_type(shape, kind, self._device)
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, self._device, 0)


def _side_by_side(parts: Sequence[tuple[Array, Rows]], shape: tuple[int, ...]) -> Array:
    """Rows of arrays that differ in one dimension, cut or filled up with zeros to `shape`."""
    whole, first = np.zeros(shape, parts[0][0].dtype), 0
    for array, rows in parts:
        here = tuple(slice(min(sizes)) for sizes in zip(shape[1:], array.shape[1:], strict=True))
        whole[first : first + len(rows)][:, *here] = array[rows][:, *here]
        first += len(rows)
    return whole

"""The recurrent states between two steps: chained by name, in two buffers that change places.

A state of constant shape gets two buffers and two bindings made once: one reads the first and writes the second, the
other the reverse. One buffer as both input and output gives the right numbers on the CPU today, but the graph's
operators are free to write before they have read; WebGPU forbids it. With the bindings ready, a step rebinds nothing.

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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.errors import UserError, printable
from t2r_runtime.interface import GENERATED
from t2r_runtime.session import Graph
from t2r_runtime.signature import (
    BATCH,
    GROWING,
    INPUT_IDS,
    LOGITS,
    MAX_STATE_BYTES,
    POSITION,
    TOP_LOGITS,
    TOP_TOKENS,
    Signature,
    StateSpec,
)

if TYPE_CHECKING:
    import onnxruntime as ort

Array = NDArray[Any]
LOGITS_ALONE: tuple[str, ...] = (LOGITS,)
TOP_ALONE: tuple[str, ...] = (TOP_LOGITS, TOP_TOKENS)
_captures = itertools.count(1)  # numbers of CUDA graphs; a session knows its graphs by them


class States:
    """All states of `batch` sequences and the bindings that chain them.

    Raises:
        UserError: the states of that many sequences exceed what one graph may ask for.
    """

    def __init__(self, graph: Graph, batch: int) -> None:
        specs = graph.signature.states
        size = sum(spec.bytes(batch) for spec in specs)
        if size > MAX_STATE_BYTES:
            raise UserError(f"states of at most {MAX_STATE_BYTES} bytes", f"{size} bytes", "choose a smaller batch")
        self.batch = batch
        self._names = [spec.name for spec in specs]
        self._session, self._prefill, self._device = graph.session, graph.prefill, graph.device
        self._rebind = graph.device != "cpu" and len(graph.placement) > 1
        self._captured = graph.captured
        self._graph_ids: defaultdict[tuple[int, tuple[str, ...]], int] = defaultdict(_captures.__next__)
        self._sources = [spec for spec in specs if spec.constant]
        self._fixed = [spec for spec in specs if not spec.constant and not spec.grows]
        self._growing = [spec for spec in specs if spec.grows]
        self._ids = self._empty((batch,), "int64")
        self._results = {LOGITS: self._empty((batch, graph.signature.vocab_size), "float32")}
        if graph.signature.top_k is not None:
            few = (batch, graph.signature.top_k)
            self._results |= {TOP_LOGITS: self._empty(few, "float32"), TOP_TOKENS: self._empty(few, "int64")}
        self._buffers = [
            {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._fixed} for _ in range(2)
        ]
        self._source = {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._sources}
        self._nothing = {spec.name: self._empty(spec.dims(batch), spec.dtype) for spec in self._growing}
        self._caches: dict[str, ort.OrtValue] = {}
        self._turn = 0  # the buffer, and the binding, that the next step reads from
        self._bindings = {LOGITS_ALONE: [self._bind(past, LOGITS_ALONE) for past in range(2)]}
        self.reset()

    def reset(self) -> None:
        """Every state to its initial value."""
        self._turn = 0
        for spec in self._fixed:
            initial = np.full(spec.dims(self.batch), spec.initial, spec.dtype)
            self._buffers[0][spec.name].update_inplace(initial)
        for spec in self._sources:
            self._source[spec.name].update_inplace(np.full(spec.dims(self.batch), spec.initial, spec.dtype))
        self._caches = dict(self._nothing)

    def read(self) -> dict[str, Array]:
        """Copies of all states, name → array."""
        values = self._buffers[self._turn] | self._source | self._caches
        return {name: np.array(values[name].numpy()) for name in self._names}

    def write(self, states: Mapping[str, Array]) -> None:
        """Copy in states that `check_states` has accepted for this batch."""
        for spec in self._fixed:
            self._buffers[self._turn][spec.name].update_inplace(np.ascontiguousarray(states[spec.name]))
        for spec in self._sources:
            self._source[spec.name].update_inplace(np.ascontiguousarray(states[spec.name]))
        for spec in self._growing:
            cache = self._empty(states[spec.name].shape, spec.dtype)
            cache.update_inplace(np.ascontiguousarray(states[spec.name]))
            self._caches[spec.name] = cache

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
        """`step` for many tokens of each sequence, ids (B, T): in one run where there is a graph for it."""
        if self._prefill is None or ids.shape[1] == 1:
            for column in ids.T:
                results = self.step(column, wanted)
            return results
        many, fed = self._prefill(), self._empty(ids.shape, "int64")
        fed.update_inplace(np.ascontiguousarray(ids))
        return self._run(many, self._bind(self._turn, wanted, many, fed), ids.shape[1], wanted)

    def write_text(self, session: ort.InferenceSession, token: int, feeds: Mapping[str, Array]) -> NDArray[np.int64]:
        """Let the loop `session` read the token and go on from the states of one sequence → what it wrote (N,)."""
        self._ids.update_inplace(np.array([token]))
        binding = session.io_binding()
        self._bind_inputs(binding, self._turn, self._ids)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(GENERATED)
        for spec in self._fixed:
            binding.bind_ortvalue_output(spec.present, self._buffers[1 - self._turn][spec.name])
        self._call(session, binding)
        self._turn = 1 - self._turn
        return np.array(binding.get_outputs()[0].numpy())

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
        self._caches = grown
        self._turn = 1 - self._turn
        return [np.asarray(self._results[name].numpy()) for name in wanted]

    def _call(
        self, session: ort.InferenceSession, binding: ort.IOBinding, options: ort.RunOptions | None = None
    ) -> None:
        try:
            session.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            raise UserError("the graph to run a step", printable(error), "export the model again") from error

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
            binding.bind_ortvalue_output(name, self._results[name])
        for spec in self._fixed:
            binding.bind_ortvalue_output(spec.present, self._buffers[1 - past][spec.name])
        self._let_go(binding)
        return binding

    def _bind_inputs(self, binding: ort.IOBinding, past: int, ids: ort.OrtValue) -> None:
        binding.bind_ortvalue_input(INPUT_IDS, ids)
        for spec in self._fixed:
            binding.bind_ortvalue_input(spec.past, self._buffers[past][spec.name])
        for spec in self._sources:
            binding.bind_ortvalue_input(spec.past, self._source[spec.name])

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


def check_states(signature: Signature, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[int, int]:
    """Check the names, dtypes and shapes of states for a graph.

    Args:
        found: name → (dtype, shape).

    Returns:
        The batch size and the length of the caches that grow (0 if there are none).

    Raises:
        UserError: with all missing and unexpected names together; if the names agree, with all wrong dtypes and shapes.
    """
    specs = {spec.name: spec for spec in signature.states}
    problems = [
        f"{label} {', '.join(sorted(names))}"
        for label, names in (("missing", specs.keys() - found.keys()), ("unexpected", found.keys() - specs.keys()))
        if names
    ]
    letters: dict[str, int] = {} if signature.batch is None else {BATCH: signature.batch}
    if not problems:
        problems = [
            f"{name} {found[name][0]} {found[name][1]} for {spec.dtype} {spec.shape}"
            for name, spec in specs.items()
            if not _fits(spec, *found[name], letters)
        ]
    if problems:
        raise UserError(
            "the states of this graph, one batch size and one cache length in all of them",
            printable("; ".join(problems)),
            "take them from the same model",
        )
    return letters.get(BATCH, 1), letters.get(GROWING, 0)


def tokens_read(states: Mapping[str, Array], length: int, otherwise: int) -> int:
    """How many tokens the furthest sequence has read: its position state, else its cache's length, else `otherwise`.

    Raises:
        UserError: a negative position.
    """
    position = int(states[POSITION].max()) if POSITION in states else length or otherwise
    if position < 0 or (POSITION in states and int(states[POSITION].min()) < 0):
        raise UserError("positions of at least 0", "a negative one", "take the states from a decoder or a snapshot")
    return position


def _fits(spec: StateSpec, dtype: str, shape: tuple[int, ...], letters: dict[str, int]) -> bool:
    """Whether a state has its form; fills in `letters` from the first state that shows them."""
    if dtype != spec.dtype or len(shape) != len(spec.shape):
        return False
    for want, have in zip(spec.shape, shape, strict=True):
        if isinstance(want, str) and have < (1 if want == BATCH else 0):
            return False
        if have != (letters.setdefault(want, have) if isinstance(want, str) else want):
            return False
    return True

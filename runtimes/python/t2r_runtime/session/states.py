"""Runs of a step graph and its companions on the states of a batch.

Two bindings, made once, swap the buffers of past and present, so that a step rebinds nothing but growing caches. (If
ONNX Runtime allocated their outputs, versions before 1.30 would lose them when a binding is reused.) From the second
step in a row on, a provider that can keeps caches and windows in place (t2r_runtime.session.reserve).

Only the token ids or vectors are copied to a device, and only the wanted outputs from it. An input that is not in the
memory of the provider that reads it is copied when it is bound, and later changes have no effect; so if two providers
share a graph, all inputs are rebound at each step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import (
    DRAFT_CHECK,
    HIDDEN,
    KEEP,
    LOG_SUM,
    LOGITS,
    PREFILL,
    TOP_LOGITS,
    TOP_TOKENS,
)
from t2r_runtime.contract.state_spec import GROWING, StateSpec
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.buffers import Array, Buffers
from t2r_runtime.session.gather import Rows
from t2r_runtime.session.reserve import NO_WINDOW, Reserve
from t2r_runtime.session.session import Graph

if TYPE_CHECKING:
    import onnxruntime as ort

LOGITS_ALONE: tuple[str, ...] = (LOGITS,)
TOP_ALONE: tuple[str, ...] = (TOP_LOGITS, TOP_TOKENS)
TOP_LOG: tuple[str, ...] = (TOP_LOGITS, TOP_TOKENS, LOG_SUM)
WITH_HIDDEN: tuple[str, ...] = (LOGITS, HIDDEN)
_captures = itertools.count(1)  # ids of CUDA graphs, unique per session


class States(Buffers):
    """The states of `batch` sequences, and the bindings that step them."""

    def __init__(self, graph: Graph, batch: int) -> None:
        super().__init__(graph, batch)
        self._rebind = graph.device != "cpu" and len(graph.placement) > 1
        self._graph_ids: defaultdict[tuple[int, tuple[str, ...]], int] = defaultdict(_captures.__next__)
        self._ids = self._read((batch,))
        self._results: dict[str, ort.OrtValue] = {}  # outputs wanted so far
        self._unchecked: dict[str, ort.OrtValue] = {}  # caches before the last check, until the next run
        self._bindings: dict[tuple[str, ...], list[ort.IOBinding]] = {}  # by wanted outputs, one per turn

    def step(self, ids: Array, wanted: tuple[str, ...] = LOGITS_ALONE) -> list[Array]:
        """Read one token of each sequence, ids (B,), or vectors (B, input_size).

        Returns:
            The outputs `wanted`, as views that the next step overwrites. Other outputs are not copied from the device.
            If a step raises, the states are unchanged.
        """
        # ONNX Runtime 1.24 ignores the strides of ids, such as a column of a larger array
        self._ids.update_inplace(np.ascontiguousarray(ids))
        if self._reserve is not None and (self._reserve.holds or self._reserve.follows):
            return self._append(self._reserve, wanted)
        if wanted not in self._bindings:
            self._bindings[wanted] = [self._bind(past, wanted) for past in range(2)]
        binding = self._bindings[wanted][self._turn]
        if self._rebind:
            self._bind_inputs(binding, self._turn, self._ids)
        results = self._run(self._session, binding, 1, wanted)
        if self._reserve is not None:
            self._reserve.follows = True
        return results

    def _append(self, reserve: Reserve, wanted: tuple[str, ...]) -> list[Array]:
        """`step` with the caches and windows in place."""
        if reserve.make_room(self._caches, self.batch):
            self._caches, self._rooms = {}, [{}, {}]
            held = self._buffers[self._turn]
            self._buffers[1 - self._turn].update({name: held[name] for name in reserve.windows})
            reserve.hold(held)
            self._forget_bindings()
        if wanted not in self._bindings:
            self._bindings[wanted] = [self._bind(past, wanted) for past in range(2)]
            for binding in self._bindings[wanted]:
                for spec in self._growing:
                    binding.bind_ortvalue_input(spec.past, reserve.buffers[spec.name])
                    binding.bind_ortvalue_output(spec.present, reserve.buffers[spec.name])
        try:
            with reserve.kept():
                self._call(self._session, self._bindings[wanted][self._turn], reserve.options())
        except UserError as error:
            if NO_WINDOW not in error.received:
                raise
            return self._without_windows(reserve, wanted)
        reserve.grew()
        self._unchecked, self._turn = {}, 1 - self._turn
        return self._wanted(wanted)

    def _without_windows(self, reserve: Reserve, wanted: tuple[str, ...]) -> list[Array]:
        """`step` after the provider refused to keep the windows in place, as where other nodes read them."""
        self._settle()
        self._graph.apart.update(reserve.windows)
        reserve.windows.clear()
        if not self._growing:
            self._reserve = None
        return self._run(self._session, self._bind(self._turn, wanted), 1, wanted)

    def prefill(self, ids: Array, wanted: tuple[str, ...] = LOGITS_ALONE) -> list[Array]:
        """`step` for several tokens of each sequence, ids (B, T), or vectors (B, T, input_size); in one run if there
        is a prefill graph.
        """
        if PREFILL not in self._graph.companions or ids.shape[1] == 1:
            for t in range(ids.shape[1]):
                results = self.step(ids[:, t], wanted)
            return results
        many, fed = self._graph.companions[PREFILL](), self._fed(ids)
        self._settle()
        return self._run(many, self._bind(self._turn, wanted, many, fed), ids.shape[1], wanted)

    def check(self, ids: NDArray[np.int64], keep: NDArray[np.int64], wanted: tuple[str, ...]) -> list[Array]:
        """Read ids (B, N), but update the states with the first `keep` (B,) only; equal for all rows if caches grow.

        Returns:
            The outputs `wanted` after each token, (B, N, ·).
        """
        session, fed = self._graph.companions[DRAFT_CHECK](), self._fed(ids)
        self._settle()
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
        """Restore the states before the last `check`, which are still in the other buffers."""
        self._turn = 1 - self._turn
        self._caches = self._unchecked

    def keep(self, rows: Rows, sources: Rows) -> None:
        super().keep(rows, sources)
        self._ids = self._first_rows(self._ids, self._graph.signature.input_dtype)
        self._results = {name: self._first_rows(value, self._result(name)[1]) for name, value in self._results.items()}
        self._forget_bindings()

    def _replace(self, spec: StateSpec, buffer: ort.OrtValue) -> None:
        super()._replace(spec, buffer)
        self._forget_bindings()

    def _forget_bindings(self) -> None:
        """Drop the bindings of former buffers."""
        self._bindings, self._graph_ids = {}, defaultdict(_captures.__next__)

    def _read(self, tokens: tuple[int, ...]) -> ort.OrtValue:
        """Memory for a run's input."""
        signature = self._graph.signature
        dims: Any = signature.input_dims(*tokens)
        return self._empty(dims, signature.input_dtype)

    def _fed(self, ids: Array) -> ort.OrtValue:
        fed = self._read(ids.shape[:2])
        fed.update_inplace(np.ascontiguousarray(ids))
        return fed

    def _run(
        self, session: ort.InferenceSession, binding: ort.IOBinding, tokens: int, wanted: tuple[str, ...]
    ) -> list[Array]:
        grown: dict[str, ort.OrtValue] = {}
        for spec in self._growing:
            cache = self._caches[spec.name]
            length = cache.shape()[spec.shape.index(GROWING)]
            grown[spec.name] = self._next_cache(spec, length + tokens)
            binding.bind_ortvalue_input(spec.past, cache)
            binding.bind_ortvalue_output(spec.present, grown[spec.name])
        try:
            self._call(session, binding, self._run_options(wanted) if session is self._session else None)
        finally:
            self._let_go(binding)
        self._caches, self._unchecked = grown, {}
        self._turn = 1 - self._turn
        return self._wanted(wanted)

    def _wanted(self, wanted: tuple[str, ...]) -> list[Array]:
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
        """Shape and dtype of an output that is not a state."""
        if name == LOG_SUM:
            return (self.batch,), "float32"
        signature = self._graph.signature
        columns = {LOGITS: signature.vocab_size, HIDDEN: signature.hidden_size}.get(name, signature.top_k)
        assert columns is not None, name
        return (self.batch, columns), "int64" if name == TOP_TOKENS else "float32"

    def _bind_inputs(self, binding: ort.IOBinding, past: int, ids: ort.OrtValue) -> None:
        binding.bind_ortvalue_input(self._graph.signature.input_name, ids)
        for spec in self._fixed:
            binding.bind_ortvalue_input(spec.past, self._buffers[past][spec.name])

    def _bind_outputs(self, binding: ort.IOBinding, past: int) -> None:
        for spec in self._chained:
            binding.bind_ortvalue_output(spec.present, self._buffers[1 - past][spec.name])

    def _run_options(self, wanted: tuple[str, ...]) -> ort.RunOptions | None:
        """A CUDA graph replays its addresses: each binding needs an id, never reused, since other states of the session
        have other addresses.
        """
        if not self._graph.captured:
            return None
        import onnxruntime as ort

        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._graph_ids[self._turn, wanted]))
        return options

    def _let_go(self, binding: ort.IOBinding) -> None:
        """Release the caches that a binding holds while the other one is used."""
        for spec in self._growing:
            binding.bind_ortvalue_input(spec.past, self._nothing[spec.name])
            binding.bind_output(spec.present, self._device)

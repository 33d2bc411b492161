"""Reads tokens with an opened step graph: tokens in, logits out, and the states between them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of, listed, require_int, require_kind, require_value
from t2r_runtime.contract.signature import DRAFT_CHECK, MOST_CHECKED, PREFILL, Signature
from t2r_runtime.contract.state_spec import ADAPTER
from t2r_runtime.decode.history import History
from t2r_runtime.decode.pace import Times
from t2r_runtime.errors import UserError, shown
from t2r_runtime.session.gather import Rows, row_numbers
from t2r_runtime.session.interface import check_states, tokens_read
from t2r_runtime.session.session import Graph
from t2r_runtime.session.states import LOGITS_ALONE, TOP_ALONE, WITH_HIDDEN, States
from t2r_runtime.session.stepper import Ids, Inputs, TokenIds, Vectors, inputs_of, require_room, token_ids
from t2r_runtime.session.threads import InUse, alone

NO_DRAFT_CHECK = "export with --draft-check; int8 and webgpu have none"
ADAPTED = "a name of an adapter, or one for each sequence"
TAKEN = "pairs of a decoder of this graph and its rows"
ROWS = 512  # tokens per run: enough for fast matrix products, with bounded memory


class Reader:
    """The reading half of t2r_runtime.Decoder, at the start of a text.

    Args:
        graph: an opened step graph.
        prefill_from: minimum length of prompts that the prefill graph reads.
        adapter: the adapter of every text, if `adapt` chooses no other.
    """

    def __init__(self, graph: Graph, prefill_from: int, adapter: str | None = None) -> None:
        require_int(prefill_from, "a number of tokens as prefill_from", 1, "token")
        self._graph, self._prefill_from = graph, prefill_from
        self.in_use = InUse("decoder", "give each thread its own fork()")
        self._states: States
        self._positions: NDArray[np.int64]  # tokens read by each sequence
        self._history: History
        self.run_times = Times()  # of speculative decoding
        self.adapter = adapter
        self.signature.adapter(adapter)  # raises for an unknown one
        self._start(self.signature.batch or 1)

    @property
    def signature(self) -> Signature:
        """The graph's metadata."""
        return self._graph.signature

    @property
    def path(self) -> Path:
        """Path of the step graph."""
        return self._graph.path

    @property
    def prefill_from(self) -> int | None:
        """Minimum length of prompts that the prefill graph reads; None without one."""
        return self._prefill_from if PREFILL in self._graph.companions else None

    @property
    def placement(self) -> dict[str, int]:
        """Number of nodes that each provider runs, by the names of t2r_runtime.PROVIDERS.

        The nodes of a fused kernel are counted individually with ONNX Runtime 1.24 and later.
        """
        return dict(self._graph.placement)

    @property
    def has_draft_check_graph(self) -> bool:
        """Whether `check` and drafts are available."""
        return DRAFT_CHECK in self._graph.companions

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self._states.batch

    @property
    def position(self) -> int:
        """Number of tokens read since the start, the maximum over sequences."""
        return int(self._positions.max())

    @alone
    def history(self, row: int = 0) -> NDArray[np.int64]:
        """The tokens read by a sequence since its start or `set_state`, at most the last 65,536.

        Penalties (`Sampling`) apply to these. States do not contain them: after `set_state` without a history and after
        `load_state` there are none.

        Returns:
            int64 (T,), oldest first.

        Raises:
            UserError: `row` is out of range.
        """
        require_int(row, "a row", 0, "batch", self.batch - 1)
        return self._history.of(row)

    @alone
    def reset(self, batch: int | None = None) -> None:
        """Restart at the beginning of a text.

        Args:
            batch: new number of sequences; None keeps it.

        Raises:
            UserError: less than 1, or other than the fixed batch of the graph.
        """
        batch = self.batch if batch is None else batch
        self.signature.require_batch(batch)
        if batch == self.batch:
            self._states.reset()
            self._adapt(self.adapter)
            self._positions[:] = 0
            self._history.clear()
        else:
            self._start(batch)

    @alone
    def adapt(self, names: str | Sequence[str | None] | None) -> None:
        """Choose the low-rank adapter of the tokens that follow, until the next `reset`. Other states do not change.

        Args:
            names: one of `signature.adapters`, or None for the model alone; or one of these for each sequence.

        Raises:
            UserError: an unknown name, or not one for each sequence.
        """
        self._adapt(names)

    def _adapt(self, names: str | Sequence[str | None] | None) -> None:
        each = [names] * self.batch if names is None or isinstance(names, str) else listed(names, ADAPTED, "argument")
        require_value(len(each) == self.batch, f"{self.batch} names of adapters, one per sequence", names, "argument")
        numbers = np.array([self.signature.adapter(name) for name in each], np.int32)
        if self.signature.adapters is not None:
            self._states.assign(ADAPTER, numbers)

    @alone
    def step(self, ids: Inputs) -> NDArray[np.float32]:
        """Read one token of each sequence.

        Args:
            ids: integers (B,) in 0 … vocabulary - 1; may be a single number if B is 1. For a graph that reads vectors:
                floating-point numbers (B, input_size), or (input_size,) if B is 1.

        Returns:
            Next-token logits, float32 (B, vocabulary), as a copy.

        Raises:
            UserError: invalid ids, or no position left.
        """
        (logits,) = self._read(inputs_of(ids, self.signature, self.batch, "(B,)"), LOGITS_ALONE)
        return logits.copy()

    @alone
    def prefill(self, ids: Inputs) -> NDArray[np.float32]:
        """Read a prompt, with the prefill graph if there is one, else one step per token.

        The resulting states do not depend on how a text is split into prompts, except for rounding: of float32, or of
        the activations of a quantized graph (docs/quantization.md, "Steps and prefill").

        Args:
            ids: integers (B, T), or (T,) if B is 1, with T of at least 1. For a graph that reads vectors:
                floating-point numbers (B, T, input_size), or (T, input_size) if B is 1.

        Returns:
            Logits after the last token, float32 (B, vocabulary), as a copy.

        Raises:
            UserError: invalid ids, or too few positions left. Nothing has been read then.
        """
        (logits,) = self._read(inputs_of(ids, self.signature, self.batch), LOGITS_ALONE)
        return logits.copy()

    @alone
    def top_k(self, ids: Inputs) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`prefill`, but fetch only the largest logits, which the graph selects.

        Returns:
            The `signature.top_k` largest logits, float32 (B, top_k), in descending order (of equals the lowest token
            first), and their tokens, int64 (B, top_k), as copies.

        Raises:
            UserError: as for `prefill`, or the graph has no top-k outputs.
        """
        if self.signature.top_k is None:
            raise UserError("a graph with top-k outputs", "one without", "export with --top-k", "graph")
        logits, tokens = self._read(inputs_of(ids, self.signature, self.batch), TOP_ALONE)
        return logits.copy(), tokens.copy()

    @alone
    def with_hidden(self, ids: Inputs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """`prefill` that also returns the input of the head.

        Returns:
            Logits after the last token, float32 (B, vocabulary), and the output of the last norm there, float32 (B,
            hidden_size), as copies.

        Raises:
            UserError: as for `prefill`, or the graph has no output `hidden`.
        """
        if self.signature.hidden_size is None:
            do = "export with --output-hidden"
            raise UserError("a graph with the output hidden", "one without", do, "graph")
        logits, hidden = self._read(inputs_of(ids, self.signature, self.batch), WITH_HIDDEN)
        return logits.copy(), hidden.copy()

    @alone
    def check(self, ids: Ids, keep: ArrayLike) -> NDArray[np.float32]:
        """Compute logits after each of several tokens in one run, but update the states with the first `keep` only.

        Args:
            ids: integers (B, N), or (N,) if B is 1, with N from 1 to 32.
            keep: number of tokens to keep, 1 … N, or integers (B,); equal for all sequences if caches grow.

        Returns:
            Logits after each token, float32 (B, N, vocabulary), as a copy.

        Raises:
            UserError: no draft-check graph, values out of range, or too few positions left.
        """
        (logits,) = self._check(token_ids(ids, self.signature, self.batch), keep, LOGITS_ALONE)
        return logits

    def fork(self) -> Self:
        """Create another decoder of the same opened graph, with its own states, at the start of a text.

        Raises:
            UserError: under CUDA graphs, which are captured for one decoder's states.
        """
        if self._graph.captured:
            do = "leave enable_cuda_graph out"
            raise UserError("one decoder per graph under CUDA graphs", "another", do, "provider")
        other = copy.copy(self)
        other.in_use = InUse("decoder", "give each thread its own fork()")
        other._start(self.signature.batch or 1)
        return other

    def reorder(self, rows: ArrayLike) -> None:
        """Keep these sequences in this order; the batch becomes their number.

        States are copied on their device (on WebGPU through the host).

        Args:
            rows: integers (N,) in 0 … batch - 1, N of at least 1; may repeat.

        Raises:
            UserError: invalid rows, or another number than the fixed batch of the graph. Nothing has changed then.
        """
        self.take([(self, rows)])

    @alone
    def take(self, parts: Sequence[tuple[Reader, ArrayLike]]) -> None:
        """Concatenate rows of decoders of the same opened graph (see `fork` and `reorder`).

        Raises:
            UserError: as for `reorder`, or caches of different lengths, or decoders of another graph.
        """
        parts = [tuple(listed(part, TAKEN, "batch")) for part in listed(parts, TAKEN, "batch")]
        if not parts or not all(
            len(part) == 2 and isinstance(part[0], Reader) and part[0]._graph is self._graph for part in parts
        ):
            raise UserError(TAKEN, "others, or none", "use forks of one decoder", "batch")
        with contextlib.ExitStack() as others:
            for decoder, _ in parts:
                others.enter_context(decoder.in_use)
            self._take([(decoder, row_numbers(rows, decoder.batch)) for decoder, rows in parts])

    def _take(self, parts: Sequence[tuple[Reader, Rows]]) -> None:
        batch = sum(len(rows) for _, rows in parts)
        self.signature.require_batch(batch)
        if len(parts) > 1:
            self.signature.require_constant("for sequences of several decoders")
        states = self._states if batch == self.batch else States(self._graph, batch)
        states.take([(decoder._states, rows) for decoder, rows in parts])
        self._positions = np.concatenate([decoder._positions[rows] for decoder, rows in parts])
        self._history = History.of_rows([(decoder._history, rows) for decoder, rows in parts])
        self._states = states

    @alone
    def put(self, row: int, other: Reader) -> None:
        """Replace a row by the row of a one-row decoder of the same opened graph, and clear all histories."""
        require_int(row, "a row", 0, "batch", self.batch - 1)
        require_value(other._graph is self._graph and other.batch == 1, "a fork with one row", other, "batch")
        self._states.put(row, other._states)
        self._positions[row] = other._positions[0]
        self._history = History(self.batch)

    @alone
    def state(self, row: int | None = None) -> dict[str, NDArray[Any]]:
        """Copy all states, or those of one row, name → array with the shape and dtype of `signature.states`."""
        if row is not None:
            require_int(row, "a row", 0, "batch", self.batch - 1)
        return self._states.read(row)

    @alone
    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0, history: ArrayLike = ()) -> None:
        """Continue from a copy of `states`; the batch becomes theirs.

        Args:
            states: all states of the graph by name, as `state` returns them.
            position: number of tokens read, for models without a position state.
            history: tokens read by the only sequence (T,), oldest first, for the penalties.

        Raises:
            UserError: missing or unexpected names, wrong dtypes or shapes, or sources that exceed the memory limit. The
                states are unchanged then.
        """
        require_kind(states, Mapping, "a mapping of arrays as states", "snapshot")
        valid = type(position) is int and 0 <= position < 1 << 62
        require_value(valid, "a position of at least 0", position, "snapshot")
        arrays = {str(name): array_of(value, f"the state {name}", "snapshot") for name, value in states.items()}
        forms = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
        batch, length = check_states(self.signature, forms)
        most = len(self.signature.adapters or ())
        if most and not 0 <= arrays[ADAPTER].min() <= arrays[ADAPTER].max() <= most:
            expected = f"numbers of adapters in 0 … {most} as the state {ADAPTER}"
            raise UserError(expected, shown(arrays[ADAPTER]), "pass states of this graph", "snapshot")
        read = array_of(history, "a history", "snapshot")
        if read.size and (read.shape != (read.size,) or read.dtype.kind not in "iu" or batch != 1):
            expected = "a history of one sequence, integers (T,)"
            raise UserError(expected, f"{read.shape} {read.dtype}", "leave it out", "snapshot")
        positions = tokens_read(arrays, batch, length, position)
        written = self._states if batch == self.batch else States(self._graph, batch)
        written.write(arrays)
        self._states = written
        self._positions, self._history = positions, History(batch)
        if read.size:
            self._history.add(read.astype(np.int64)[np.newaxis])

    def _start(self, batch: int) -> None:
        self._states = States(self._graph, batch)
        self._states.reset()
        self._adapt(self.adapter)
        self._positions, self._history = np.zeros(batch, np.int64), History(batch)

    def _read(self, ids: TokenIds | Vectors, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
        """Read a prompt and return the outputs `wanted` after its last token, as views.

        If a run fails, the tokens before it have been read.
        """
        tokens, fewest = ids.array, self.prefill_from
        require_room(self, tokens.shape[1])
        many = max(ROWS // self.batch, 1) if fewest is not None and tokens.shape[1] >= fewest else 1
        for start in range(0, tokens.shape[1], many):
            part = tokens[:, start : start + many]
            results = self._states.prefill(part, wanted)
            self._positions += part.shape[1]
            if isinstance(ids, TokenIds):
                self._history.add(ids.array[:, start : start + many])
        return results

    def _check(self, ids: TokenIds, keep: ArrayLike, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
        """`check`, with the outputs `wanted`."""
        self._require_draft_check()
        tokens, most = ids.array, ids.array.shape[1]
        if most > MOST_CHECKED:
            raise UserError(f"at most {MOST_CHECKED} tokens to check at once", f"{most}", "pass fewer", "token")
        given = array_of(keep, "keep", "token")
        counts = np.broadcast_to(given, self.batch) if given.ndim == 0 else given
        fits = counts.dtype.kind in "iu" and counts.shape == (self.batch,) and 1 <= counts.min() <= counts.max() <= most
        alike = fits and (counts == counts[0]).all()
        if not fits or not (alike or not any(spec.grows for spec in self.signature.states)):
            one = "" if fits is alike else ", equal for all sequences, whose caches have one length"
            expected = f"keep in 1 … {most}, a number or integers ({self.batch},){one}"
            raise UserError(expected, shown(keep), "correct it", "token")
        require_room(self, most)
        counts = counts.astype(np.int64)
        results = self._states.check(tokens, counts, wanted)
        self._positions += counts
        self._history.add_rows(tokens, counts)
        return results

    def open_draft_check(self) -> None:
        """Open the draft-check graph, before runs are timed. Raises UserError if there is none."""
        self._require_draft_check()
        self._graph.companions[DRAFT_CHECK]()

    def _require_draft_check(self) -> None:
        if not self.has_draft_check_graph:
            raise UserError("a draft-check graph beside the step graph", "none", NO_DRAFT_CHECK, "graph")

    def _uncheck(self, read: int) -> None:
        """Undo the last `_check` of one sequence, which had read `read` tokens."""
        self._states.uncheck()
        self._positions -= read
        self._history.forget(read)

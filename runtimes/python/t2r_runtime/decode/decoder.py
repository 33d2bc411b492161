"""A step graph as a decoder: tokens in, logits out, and the states between them kept where nobody can forget them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import array_of, listed, require_kind
from t2r_runtime.contract.sampling import Sampler, Sampling
from t2r_runtime.contract.signature import (
    COMPANIONS,
    DRAFT_CHECK,
    GENERATE,
    MAX_STATE_BYTES,
    MOST_CHECKED,
    PREFILL,
    Signature,
)
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.history import History
from t2r_runtime.errors import UserError, shown
from t2r_runtime.session.gather import Rows, row_numbers
from t2r_runtime.session.interface import check_states, generation_feeds, tokens_read
from t2r_runtime.session.session import open_graph
from t2r_runtime.session.states import LOGITS_ALONE, TOP_ALONE, States
from t2r_runtime.session.stepper import Ids, TokenIds, require_room, token_ids
from t2r_runtime.session.threads import InUse, alone

if TYPE_CHECKING:
    from t2r_runtime.decode.pace import Times

TAKEN = "pairs of a decoder of this graph and its rows"
NO_DRAFT_CHECK = "export with --draft-check; int8 and webgpu have none"
ROWS = 512  # tokens in one run: enough for a matrix product to be at its fastest, and a bound on its memory


class Decoder:
    """A step graph, opened, at the start of a text.

    Args:
        path: the .onnx file.
        provider: where to run; see t2r_runtime.PROVIDERS.
        threads: threads inside an operator; None is one for a graph of a few megabytes, and one a physical core that
            this process may use for a large one (t2r_runtime.session.tuning).
        provider_options: passed on to the provider.
        allow_fallback: let the CPU run the nodes that the provider does not take; `placement` tells how many. Without
            it they are an error that names them.
        companions: roles of the graphs beside this one that may be used, where it names them. Each is opened when it is
            first used, and takes memory for a session of its own: "prefill" reads many tokens of a prompt at once,
            "draft_check" guesses of several tokens, "generate" does all that `generate` is asked for without a callback
            in one run, on the provider cpu. A translator's "encoder" is for t2r_runtime.Translator.
        max_state_bytes: the most that the states of one sequence may take, which a stranger's graph chooses.
        prefill_from: how many tokens a prompt has at least that the prefill graph reads; steps read shorter ones. To
            open that graph takes as long as some dozens of steps, so a process that reads a short prompt and no other
            is sooner without.
        session_config: entries of ONNX Runtime's session configuration, as `t2r bench GRAPH --tune` finds them.

    Raises:
        UserError: see t2r_runtime.session.session.open_graph; a `prefill_from` below 1.

    One decoder is one state: call `reset` between texts. Two threads in it at once are a UserError in one of them; give
    each a `fork`.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "cpu",
        threads: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        allow_fallback: bool = False,
        companions: Collection[str] = COMPANIONS,
        max_state_bytes: int = MAX_STATE_BYTES,
        prefill_from: int = 1,
        session_config: Mapping[str, str] | None = None,
    ) -> None:
        if type(prefill_from) is not int or prefill_from < 1:
            raise UserError(
                "a number of tokens of at least 1 as prefill_from", shown(prefill_from), "correct it", "token"
            )
        self._prefill_from = prefill_from
        self._graph = open_graph(
            path,
            provider,
            threads,
            provider_options,
            allow_fallback,
            session_config,
            companions=companions,
            max_state_bytes=max_state_bytes,
        )
        self.in_use = InUse("decoder", "give each thread a fork() of its own")
        self.run_times: Times | None = None  # where drafts have timed runs
        self._states: States
        self._positions: NDArray[np.int64]  # tokens that each sequence has read
        self._history: History
        self._start(self.signature.batch or 1)

    @property
    def signature(self) -> Signature:
        """What the graph's metadata says."""
        return self._graph.signature

    @property
    def path(self) -> Path:
        """The step graph's file."""
        return self._graph.path

    @property
    def prefill_from(self) -> int | None:
        """How many tokens a prompt has at least that the prefill graph reads; None where steps read all."""
        return self._prefill_from if PREFILL in self._graph.companions else None

    @property
    def placement(self) -> dict[str, int]:
        """How many of the graph's nodes each provider runs, by the names of t2r_runtime.PROVIDERS.

        Nodes that become one kernel count one by one where ONNX Runtime tells them (1.24 and later).
        """
        return dict(self._graph.placement)

    @property
    def batch(self) -> int:
        """Number of sequences decoded side by side."""
        return self._states.batch

    @property
    def position(self) -> int:
        """Number of tokens read since the start, by the furthest sequence; nobody has to fetch a state to know it."""
        return int(self._positions.max())

    @property
    def has_generation_graph(self) -> bool:
        """Whether `generate` without a callback is one run of a generation graph."""
        return GENERATE in self._graph.companions

    @property
    def has_draft_check_graph(self) -> bool:
        """Whether `check` and drafts can be used."""
        return DRAFT_CHECK in self._graph.companions

    @alone
    def history(self, row: int = 0) -> NDArray[np.int64]:
        """The last 65,536 tokens, or fewer, that a sequence has read since its start or since `set_state`.

        It is what penalties look back on (`Sampling`). States alone do not tell what they have read: after `set_state`
        and `load_state` it is empty.

        Returns:
            int64 (T,), oldest first.

        Raises:
            UserError: a row that is not in 0 … batch - 1.
        """
        if type(row) is not int or not 0 <= row < self.batch:
            raise UserError(f"a row in 0 … {self.batch - 1}", shown(row), "choose another", "batch")
        return self._history.of(row)

    @alone
    def reset(self, batch: int | None = None) -> None:
        """Go back to the start of a text.

        Args:
            batch: number of sequences from now on; None leaves it as it is.

        Raises:
            UserError: less than 1, or another number than the graph was exported for.
        """
        batch = self.batch if batch is None else batch
        self.signature.require_batch(batch)
        if batch == self.batch:
            self._states.reset()
            self._positions[:] = 0
            self._history.clear()
        else:
            self._start(batch)

    @alone
    def step(self, ids: Ids) -> NDArray[np.float32]:
        """Read one token of each sequence.

        Args:
            ids: integers (B,) in 0 … vocabulary - 1; a single number if B is 1.

        Returns:
            The logits of what comes next, float32 (B, vocabulary): the caller's own copy.

        Raises:
            UserError: ids of another form or range, or a step past the model's last position.
        """
        (logits,) = self._read(token_ids(ids, self.signature, self.batch, "(B,)"), LOGITS_ALONE)
        return logits.copy()

    @alone
    def prefill(self, ids: Ids) -> NDArray[np.float32]:
        """Read a prompt: many tokens at once where there is a prefill graph, else one step per token.

        However a text is cut into prompts, the states after it are the same but for rounding: float32's, or that of the
        activations in a quantized graph (docs/quantization.md, "Steps and prefill").

        Args:
            ids: integers (B, T), or (T,) if B is 1, with T of at least 1.

        Returns:
            The logits after the last token, float32 (B, vocabulary): the caller's own copy.

        Raises:
            UserError: as for `step`, and for an empty prompt. Nothing has been read then.
        """
        (logits,) = self._read(token_ids(ids, self.signature, self.batch), LOGITS_ALONE)
        return logits.copy()

    @alone
    def top_k(self, ids: Ids) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Read ids as `prefill` does, and fetch no more than the largest logits: the graph itself chose them.

        Returns:
            The `signature.top_k` largest logits, float32 (B, top_k), largest first, of equals the lowest token; and
            their tokens, int64 (B, top_k). The caller's own copies.

        Raises:
            UserError: as for `prefill`, and for a graph that has no such outputs.
        """
        if self.signature.top_k is None:
            raise UserError("a graph that chooses the largest logits", "one without", "export with --top-k", "graph")
        logits, tokens = self._read(token_ids(ids, self.signature, self.batch), TOP_ALONE)
        return logits.copy(), tokens.copy()

    @alone
    def check(self, ids: Ids, keep: ArrayLike) -> NDArray[np.float32]:
        """Read the first few of some tokens, and see what comes behind each of them: one run of the draft-check graph.

        The states are then those after the first `keep` tokens; what stands behind is read for its logits alone.

        Args:
            ids: integers (B, N), or (N,) if B is 1, with N from 1 to 32.
            keep: how many to read, 1 … N: a number, or integers (B,). Where caches grow it is one for all sequences.

        Returns:
            The logits behind each token, float32 (B, N, vocabulary): the caller's own copy.

        Raises:
            UserError: no such graph, values out of range, or more tokens than the model has positions.
        """
        (logits,) = self._check(token_ids(ids, self.signature, self.batch), keep, LOGITS_ALONE)
        return logits

    def fork(self) -> Decoder:
        """Another decoder of the same opened graph: states of its own, at the start of a text, and the same weights.

        Raises:
            UserError: under CUDA graphs, which replay the addresses of one decoder's states.
        """
        if self._graph.captured:
            raise UserError(
                "one decoder per graph under CUDA graphs", "another", "leave enable_cuda_graph out", "provider"
            )
        other = copy.copy(self)
        other.in_use = InUse("decoder", "give each thread a fork() of its own")
        other._start(self.signature.batch or 1)
        return other

    def reorder(self, rows: ArrayLike) -> None:
        """Go on with these sequences in this order: drop, repeat or exchange them. The batch becomes their number.

        The states are copied where they live, not by way of the host (but on WebGPU: see t2r_runtime.session.gather).

        Args:
            rows: integers (N,) in 0 … batch - 1, N of at least 1.

        Raises:
            UserError: other rows, or another number of them than the graph was exported for. All is as before then.
        """
        self.take([(self, rows)])

    @alone
    def take(self, parts: Sequence[tuple[Decoder, ArrayLike]]) -> None:
        """Go on with rows of decoders of the same opened graph (see `fork`), one below the other, as in `reorder`.

        Raises:
            UserError: as for `reorder`, and for caches of different lengths or decoders of another graph.
        """
        parts = [tuple(listed(part, TAKEN, "batch")) for part in listed(parts, TAKEN, "batch")]
        if not parts or not all(
            len(part) == 2 and isinstance(part[0], Decoder) and part[0]._graph is self._graph for part in parts
        ):
            raise UserError(TAKEN, "others, or none", "use forks of one decoder", "batch")
        with contextlib.ExitStack() as others:
            for decoder, _ in parts:
                others.enter_context(decoder.in_use)
            self._take([(decoder, row_numbers(rows, decoder.batch)) for decoder, rows in parts])

    def _take(self, parts: Sequence[tuple[Decoder, Rows]]) -> None:
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
    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all states, name → array of the shape and dtype in `signature.states`."""
        return self._states.read()

    @alone
    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0, history: ArrayLike = ()) -> None:
        """Go on from `states`, which are copied. The batch becomes theirs.

        Args:
            states: every state of the graph by name, as `state` returns them.
            position: tokens read so far, for a model none of whose states says it.
            history: of one sequence, what it has read (T,), oldest first, where penalties are to look back on it.

        Raises:
            UserError: missing or unexpected names, other dtypes or shapes, or sources so long that the states exceed
                what one graph may ask for. The states are as before then.
        """
        require_kind(states, Mapping, "a mapping of arrays as states", "snapshot")
        if type(position) is not int or not 0 <= position < 1 << 62:
            raise UserError("a position of at least 0", shown(position), "give the number of tokens read", "snapshot")
        arrays = {str(name): array_of(value, f"the state {name}", "snapshot") for name, value in states.items()}
        forms = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
        batch, length = check_states(self.signature, forms)
        read = array_of(history, "a history", "snapshot")
        if read.size and (read.shape != (read.size,) or read.dtype.kind not in "iu" or batch != 1):
            raise UserError(
                "a history of one sequence, integers (T,)", f"{read.shape} {read.dtype}", "leave it out", "snapshot"
            )
        positions = tokens_read(arrays, batch, length, position)
        written = self._states if batch == self.batch else States(self._graph, batch)
        written.write(arrays)
        self._states = written
        self._positions, self._history = positions, History(batch)
        if read.size:
            self._history.add(read.astype(np.int64)[np.newaxis])

    @alone
    def save_state(self, path: str | Path, token: int | None = None) -> None:
        """Write the states to a file, so that what was read need not be read again. See t2r_runtime.session.snapshot.

        Args:
            token: one that has been chosen and not read, as the last of `generate`: the text goes on with it.
        """
        import t2r_runtime.session.snapshot as snapshot

        snapshot.save(path, self.signature, self.state(), self.position, token)

    @alone
    def load_state(self, path: str | Path) -> int | None:
        """Go on from a file of `save_state`, as if nothing had happened between.

        Returns:
            The token that was saved with the states, which is the first to read now; None if there was none.

        Raises:
            UserError: not such a file, a damaged one, or one of another model. The states are as before then.
        """
        import t2r_runtime.session.snapshot as snapshot

        states, position, token = snapshot.load(path, self.signature)
        self.set_state(states, position)
        return token

    def stream(
        self, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling(), draft: object = None
    ) -> Iterator[int]:
        """`generate`, one token at a time; what it refuses, it refuses at once.

        With drafts, several tokens come of one run: until the last of them was handed out or the stream is closed, the
        decoder has read fewer than all but the latest.
        """
        request = generate.checked(self, ids, max_tokens, sampling)
        return generate.tokens(self, request) if draft is None else self._speculate(request, draft)

    @alone
    def generate(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        callback: Callable[[int], object] | None = None,
        draft: object = None,
    ) -> list[int]:
        """Read `ids` and write up to `max_tokens` tokens, from where the decoder stands (`reset` starts a new text).

        Args:
            ids: the prompt (T,), T of at least 1; start from the BOS token if there is none.
            max_tokens: at least 1.
            sampling: how they are chosen, and which of them end the text.
            callback: called with each token as it is chosen. Returning False (and nothing else) ends the text there.
                Without one, a generation graph does all in one run; the tokens are the same.
            draft: what guesses tokens, several of which a draft-check graph then reads in one run: "lookup" (what came
                after the last tokens when they stood in this text before), or a Decoder of a smaller model of the same
                tokens, which is reset. The text is the same but for rounding, as in `prefill`; where the guesses do not
                pay, few are made.

        Returns:
            The new tokens; one that ended the text is the last of them. The decoder has read all but the last, so
            passing that one (and what follows it) to the next call goes on.

        Raises:
            UserError: a batch other than 1, a value out of range, or more tokens than the model has positions.
        """
        request = generate.checked(self, ids, max_tokens, sampling)
        if callback is not None and not callable(callback):
            raise UserError(
                "a callback that can be called", shown(callback), "give a function of one token", "sampling"
            )
        if callback is None and draft is None and self.has_generation_graph:
            if request.all_but_last is not None:
                self.prefill(request.all_but_last)
            return self._generate_in_graph(request.last, request.sampler, max_tokens, request.stop)
        tokens = []
        written = generate.tokens(self, request) if draft is None else self._speculate(request, draft)
        with contextlib.closing(written):
            for token in written:
                tokens.append(token)
                if callback is not None and callback(token) is False:
                    break
        return tokens

    def _speculate(self, request: Request, draft: object) -> Generator[int]:
        import t2r_runtime.decode.speculation as speculation

        self._draft_check()  # opened before anything is timed
        return speculation.tokens(self, request, speculation.drafter_of(self, draft))

    def _start(self, batch: int) -> None:
        """New states of so many sequences, at the start of a text."""
        self._states = States(self._graph, batch)
        self._states.reset()
        self._positions, self._history = np.zeros(batch, np.int64), History(batch)

    def _generate_in_graph(self, token: int, sampler: Sampler, max_tokens: int, stop: Collection[int]) -> list[int]:
        """Read the token and generate in one run, as the generator of `generate` does in many.

        Raises:
            UserError: logits that are not finite.
        """
        occurred = self._history.of(0) if sampler.sampling.looks_back else ()
        written = self._states.generate(token, generation_feeds(sampler, max_tokens, stop, occurred)).tolist()
        self._positions += len(written)
        self._history.add(np.array([[token, *written][:-1]], np.int64))
        sampler.draws += len(written)
        if written and written[-1] < 0:
            raise UserError(
                "finite logits", f"others after {self.position} tokens", "check the graph with t2r verify", "graph"
            )
        return list(written)

    def _check(self, ids: TokenIds, keep: ArrayLike, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
        """`check`, and of its outputs those that are wanted."""
        self._draft_check()
        tokens, most = ids.array, ids.array.shape[1]
        if most > MOST_CHECKED:
            raise UserError(f"at most {MOST_CHECKED} tokens to check at once", f"{most}", "give fewer", "token")
        given = array_of(keep, "keep", "token")
        counts = np.broadcast_to(given, self.batch) if given.ndim == 0 else given
        fits = counts.dtype.kind in "iu" and counts.shape == (self.batch,) and 1 <= counts.min() <= counts.max() <= most
        alike = fits and (counts == counts[0]).all()
        if not fits or not (alike or not any(spec.grows for spec in self.signature.states)):
            one = "" if fits is alike else ", the same for all sequences, whose caches have one length"
            expected = f"keep in 1 … {most}, a number or integers ({self.batch},){one}"
            raise UserError(expected, shown(keep), "correct it", "token")
        require_room(self, most)
        counts = counts.astype(np.int64)
        results = self._states.check(tokens, counts, wanted)
        self._positions += counts
        self._history.add_rows(tokens, counts)
        return results

    def _draft_check(self) -> None:
        """Open the draft-check graph, once.

        Raises:
            UserError: there is none.
        """
        if not self.has_draft_check_graph:
            raise UserError("a draft-check graph beside the step graph", "none", NO_DRAFT_CHECK, "graph")
        self._graph.companions[DRAFT_CHECK]()

    def _uncheck(self, read: int) -> None:
        """Take back the latest `_check` of one text, of which the states had read so many tokens."""
        self._states.uncheck()
        self._positions -= read
        self._history.forget(read)

    def _read(self, ids: TokenIds, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
        """Read a prompt; the outputs `wanted` after its last token, as views. What fails leaves it read up to there."""
        tokens = ids.array
        require_room(self, tokens.shape[1])
        fewest = self.prefill_from
        many = max(ROWS // self.batch, 1) if fewest is not None and tokens.shape[1] >= fewest else 1
        for start in range(0, tokens.shape[1], many):
            part = tokens[:, start : start + many]
            results = self._states.prefill(part, wanted)
            self._positions += part.shape[1]
            self._history.add(part)
        return results

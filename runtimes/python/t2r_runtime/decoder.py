"""A step graph as a decoder: tokens in, logits out, and the states between them kept where nobody can forget them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime import generate
from t2r_runtime.errors import UserError
from t2r_runtime.interface import generation_feeds
from t2r_runtime.sampling import Sampler, Sampling
from t2r_runtime.session import open_graph
from t2r_runtime.signature import Signature
from t2r_runtime.states import LOGITS_ALONE, TOP_ALONE, States, check_states, tokens_read

ROWS = 512  # tokens in one run: enough for a matrix product to be at its fastest, and a bound on its memory


class Decoder:
    """A step graph, opened, at the start of a text.

    Args:
        path: the .onnx file.
        provider: where to run; see t2r_runtime.PROVIDERS.
        threads: threads inside an operator; None is one a physical core that this process may use.
        provider_options: passed on to the provider.
        allow_fallback: let the CPU run the nodes that the provider does not take; `placement` tells how many. Without
            it they are an error that names them.
        prefill: read prompts with the prefill graph, where the step graph names one. It reads many tokens at once.
            It is opened for the first prompt of more than one token, and takes memory for a session of its own.
        loop: let the graph that writes by itself, where the step graph names one and the provider is cpu, do what
            `generate` is asked for without a callback. It is opened then, and takes memory for a session of its own.

    Raises:
        UserError: see t2r_runtime.session.open_graph.

    One decoder is one state: use it from one thread at a time, and call `reset` between texts.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "cpu",
        threads: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        allow_fallback: bool = False,
        prefill: bool = True,
        loop: bool = True,
    ) -> None:
        self._graph = open_graph(path, provider, threads, provider_options, allow_fallback, prefill=prefill, loop=loop)
        self._states = States(self._graph, self.signature.batch or 1)
        self._position = 0

    @property
    def signature(self) -> Signature:
        """What the graph's metadata says."""
        return self._graph.signature

    @property
    def placement(self) -> dict[str, int]:
        """How many of the graph's nodes each provider runs, by the names of t2r_runtime.PROVIDERS.

        Nodes that a provider compiles into one kernel count one by one where ONNX Runtime tells them (1.24 and later).
        """
        return dict(self._graph.placement)

    @property
    def batch(self) -> int:
        """Number of sequences decoded side by side."""
        return self._states.batch

    @property
    def position(self) -> int:
        """Number of tokens read since the start; after `set_state`, that of the furthest sequence.

        Counted here, so that nobody has to fetch a state from a device to know it.
        """
        return self._position

    def reset(self, batch: int | None = None) -> None:
        """Go back to the start of a text.

        Args:
            batch: number of sequences from now on; None leaves it as it is.

        Raises:
            UserError: less than 1, or another number than the graph was exported for.
        """
        batch = self.batch if batch is None else batch
        fixed = self.signature.batch
        if type(batch) is not int or batch < 1 or batch != (fixed or batch):
            raise UserError(
                "a batch of at least 1" if fixed is None else f"a batch of {fixed}, for which the graph was exported",
                repr(batch),
                "choose another" if fixed is None else "export the model without a fixed batch",
            )
        if batch == self.batch:
            self._states.reset()
        else:
            self._states = States(self._graph, batch)
        self._position = 0

    def step(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read one token of each sequence.

        Args:
            ids: whole numbers (B,) in 0 … vocabulary - 1; a single number if B is 1.

        Returns:
            The logits of what comes next, float32 (B, vocabulary): the caller's own copy.

        Raises:
            UserError: ids of another form or range, or a step past the model's last position.
        """
        tokens = generate.token_ids(ids, self.signature)
        if tokens.shape != (self.batch,) and not (tokens.shape == () and self.batch == 1):
            raise UserError(f"ids of the shape ({self.batch},)", f"{tokens.shape}", "give one token a sequence")
        self._room_for(1)
        (logits,) = self._states.step(tokens.reshape(self.batch))
        self._position += 1
        return logits.copy()

    def prefill(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read a prompt: many tokens at once where there is a graph for it, else one step a token.

        Args:
            ids: whole numbers (B, T), or (T,) if B is 1, with T of at least 1.

        Returns:
            The logits after the last token, float32 (B, vocabulary): the caller's own copy.

        Raises:
            UserError: as for `step`, and for an empty prompt. Nothing has been read then.

        However a text is cut into prompts, the states after it are the same but for rounding.
        """
        (logits,) = self._read(ids, LOGITS_ALONE)
        return logits.copy()

    def top(self, ids: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Read as `prefill` does, and fetch no more than the largest logits: the graph itself chose them.

        Args:
            ids: as for `prefill`.

        Returns:
            The `signature.top_k` largest logits, float32 (B, top_k), largest first, of equals the lowest token; and
            their tokens, int64 (B, top_k). The caller's own copies.

        Raises:
            UserError: as for `prefill`, and for a graph that has no such outputs.
        """
        if self.signature.top_k is None:
            raise UserError("a graph that chooses the largest logits", "one without", "export with --top-k")
        logits, tokens = self._read(ids, TOP_ALONE)
        return logits.copy(), tokens.copy()

    def fork(self) -> Decoder:
        """Another decoder of the same opened graph: states of its own, at the start of a text, and the same weights.

        Raises:
            UserError: under CUDA graphs, which replay the addresses of one decoder's states.
        """
        if self._graph.captured:
            raise UserError("one decoder a graph under CUDA graphs", "another", "leave enable_cuda_graph out")
        other = copy.copy(self)
        other._states, other._position = States(self._graph, self.signature.batch or 1), 0
        return other

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all states, name → array of the shape and dtype in `signature.states`."""
        return self._states.read()

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0) -> None:
        """Go on from `states`, which are copied. The batch becomes theirs.

        Args:
            states: every state of the graph by name, as `state` returns them.
            position: tokens read so far, for a model none of whose states says it.

        Raises:
            UserError: missing or unexpected names, or other dtypes or shapes. The states are as before then.
        """
        arrays = {name: np.asarray(value) for name, value in states.items()}
        forms = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
        batch, length = check_states(self.signature, forms)
        read = tokens_read(arrays, length, position)
        if batch != self.batch:
            self._states = States(self._graph, batch)
        self._states.write(arrays)
        self._position = read

    def save_state(self, path: str | Path) -> None:
        """Write the states to a file, so that what was read need not be read again. See t2r_runtime.snapshot."""
        from t2r_runtime import snapshot

        snapshot.save(path, self.signature, self.state(), self.position)

    def load_state(self, path: str | Path) -> None:
        """Go on from a file of `save_state`, as if nothing had happened between.

        Raises:
            UserError: not such a file, a damaged one, or one of another model. The states are as before then.
        """
        from t2r_runtime import snapshot

        self.set_state(*snapshot.load(path, self.signature))

    def stream(self, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling()) -> Iterator[int]:
        """`generate`, one token at a time; what it refuses, it refuses at once."""
        return generate.stream(self, ids, max_tokens, sampling)

    def generate(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        callback: Callable[[int], object] | None = None,
    ) -> list[int]:
        """Read `ids` and write up to `max_tokens` tokens, from where the decoder stands (`reset` starts a new text).

        Args:
            ids: the prompt (T,), T of at least 1; start from the BOS token if there is none.
            max_tokens: at least 1.
            sampling: how they are chosen, and which of them end the text.
            callback: called with each token as it is chosen. Returning False (and nothing else) ends the text there.
                Without one, a graph that writes by itself does all in one run; the tokens are the same.

        Returns:
            The new tokens; one that ended the text is the last of them. The decoder has read all but the last, so
            passing that one (and what follows it) to the next call goes on.

        Raises:
            UserError: a batch other than 1, a value out of range, or more tokens than the model has positions.
        """
        if callback is None:
            written = generate.at_once(self, ids, max_tokens, sampling)
            if written is not None:
                return written
        tokens = []
        for token in self.stream(ids, max_tokens, sampling):
            tokens.append(token)
            if callback is not None and callback(token) is False:
                break
        return tokens

    def writes(self) -> bool:
        """Whether there is a graph that writes by itself."""
        return self._graph.loop is not None

    def write_text(self, token: int, sampler: Sampler, max_tokens: int, stop_tokens: Iterable[int]) -> list[int]:
        """Read `token` and write in one run of the graph that does so, as `generate` does in many.

        Args:
            token, max_tokens, stop_tokens: checked by the caller, who has asked `writes`.

        Returns:
            The new tokens, all but the last of which have been read.

        Raises:
            UserError: logits that are not finite.
        """
        assert self._graph.loop is not None
        feeds = generation_feeds(sampler, max_tokens, stop_tokens)
        written = self._states.write_text(self._graph.loop(), token, feeds).tolist()
        self._position += len(written)
        sampler.draws += len(written)
        if written and written[-1] < 0:
            raise UserError("finite logits", f"others after {self._position} tokens", "check the graph with t2r verify")
        return list(written)

    def _read(self, ids: ArrayLike, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
        """Read a prompt; the outputs `wanted` after its last token, as views."""
        tokens = generate.token_ids(ids, self.signature)
        if tokens.ndim == 1 and self.batch == 1:
            tokens = tokens[np.newaxis]
        if tokens.ndim != 2 or tokens.shape[0] != self.batch:
            form = f"({self.batch}, T)" + (" or (T,)" if self.batch == 1 else "")
            raise UserError(f"ids of the shape {form}", f"{tokens.shape}", "give one row of tokens a sequence")
        self._room_for(tokens.shape[1])
        many = max(ROWS // self.batch, 1)
        for start in range(0, tokens.shape[1], many):
            part = tokens[:, start : start + many]
            results = self._states.prefill(part, wanted)
            self._position += part.shape[1]
        return results

    def _room_for(self, tokens: int) -> None:
        limit = self.signature.max_positions
        if limit is not None and self.signature.past_end == "refuse" and self._position + tokens > limit:
            raise UserError(
                f"at most {limit} tokens, where this model's positions end",
                f"{tokens} more after {self._position}",
                "reset, read less, or export with --past-end clamp",
            )

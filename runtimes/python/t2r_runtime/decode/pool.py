"""Rows of one batch, which texts join and leave between steps.

A text waits until a row is free, first come first served. Its prompt is read in chunks between the steps of the others,
so that a long prompt does not delay them; then it joins the rows. Batch and the server use it.

Chunks begin at multiples of their size from the start of the prompt and from its marks, and the noise of a choice
depends on the seed and the number of the draw only: other texts do not change a text, except for rounding.

With drafts, a text that is alone may read several tokens in one run; each step still returns one. Rows of several texts
have none: a run of all of them uses the weights as well, and accepts other numbers of tokens in each.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import require_kind
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.drafts import Head
from t2r_runtime.decode.pace import Pace
from t2r_runtime.decode.speculation import Ahead, drafter_of, read_latest
from t2r_runtime.decode.text import LENGTH, REMOVED, Edit, Start, Text, Watch
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import TokenIds, token_ids

CHUNK, CHUNK_BY_STEPS = 64, 8  # tokens of prompts per step, with a prefill graph and without
SPARE = 4  # one row in this many may stay free


class Chosen(NamedTuple):
    """A token of a text; None if the text ended without one."""

    text: Text
    token: int | None


@dataclass
class _Prompt:
    """A prompt being read, and the texts that continue it."""

    texts: Sequence[Text]
    unread: deque[NDArray[np.int64]]  # parts (T,); on_read is called after each
    start: Start | None
    on_read: Callable[[Decoder], object] | None
    reader: Decoder | None = None  # opened by `add`, or when a row is free

    @property
    def going(self) -> list[Text]:
        return [text for text in self.texts if text.ended is None]


class Pool:
    """Generates many texts at once, in a batch of at most `capacity` rows.

    Args:
        decoder: its graph is used; its own text is not affected.
        capacity: maximum number of rows.
        chunk: number of prompt tokens read per step. Default: `CHUNK`, or `CHUNK_BY_STEPS` without a prefill graph.
        draft: as for Decoder.generate; a Decoder's own text is not affected.
        drafted: called after runs with drafts with the numbers of draft tokens and of right ones.

    Raises:
        UserError: the graph reads vectors, has growing caches, whose lengths would have to be equal, or a fixed batch;
            states of `capacity` rows exceed the memory limit; or drafts without a draft-check graph, or invalid ones.

    A pool must be used by one thread at a time.
    """

    def __init__(
        self,
        decoder: Decoder,
        capacity: int = sys.maxsize,
        chunk: int | None = None,
        draft: object = None,
        drafted: Callable[[int, int], object] = lambda checked, right: None,
    ) -> None:
        require_kind(decoder, Decoder, "a Decoder", "graph")
        signature = decoder.signature
        signature.require_tokens()
        signature.require_constant("for texts of different lengths side by side")
        if signature.batch is not None:
            raise UserError("a graph of any batch", f"one of {signature.batch}", "export it without --batch", "batch")
        if capacity < sys.maxsize:
            signature.require_memory(capacity, decoder._graph.max_state_bytes)
        self._heads = False
        if draft is not None:
            decoder.open_draft_check()
            draft = draft.fork() if isinstance(draft, Decoder) else draft
            self._heads = isinstance(drafter_of(decoder, draft), Head)
        by_steps = decoder.prefill_from is None
        self.capacity, self.chunk = capacity, chunk or (CHUNK_BY_STEPS if by_steps else CHUNK)
        self._all = decoder.fork()
        self._rows: list[Text | None] = []  # of `_all`; a row of None or of an ended text is free
        self._waiting: deque[_Prompt] = deque()
        self._reading: deque[_Prompt] = deque()
        self._ready: deque[tuple[Text, Decoder]] = deque()  # prompt read, no row yet
        self._ended: list[Chosen] = []  # texts that ended without a token since the last step
        self._draft, self._drafted = draft, drafted
        self._ahead: tuple[Text, Ahead] | None = None  # the text alone in the rows, with its drafts
        self._paces: WeakKeyDictionary[Text, Pace] = WeakKeyDictionary()

    @property
    def running(self) -> int:
        """Number of texts that have a row, or whose prompts are being read."""
        return len(self._live()) + sum(len(prompt.going) for prompt in self._reading) + len(self._ready)

    @property
    def waiting(self) -> int:
        """Number of texts that wait for a row."""
        return sum(len(prompt.going) for prompt in self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._waiting or self._reading or self._ready or self._ended or self._live())

    def add(
        self,
        ids: ArrayLike,
        max_tokens: int,
        samplings: Sequence[Sampling],
        start: Start | None = None,
        watch: Sequence[Watch] = (),
        scored: bool = False,
        on_read: Callable[[Decoder], object] | None = None,
        marks: Sequence[int] = (),
        edits: Sequence[Edit] = (),
    ) -> list[Text]:
        """Add texts that continue one prompt, which is read once.

        Args:
            ids: the prompt (T,), T of at least 1.
            max_tokens: maximum number of new tokens; 0 only reads the prompt.
            samplings: sampling options of each text.
            start: states that the prompt starts from; default: the start of a text.
            watch: a function for each text, called with all logits (vocabulary,) and the token chosen from them.
            scored: read the prompt with steps, and call `watch` for each of its tokens but the first too.
            on_read: called when all tokens of the prompt but the last are read, with a decoder that has read them.
            marks: numbers of tokens of the prompt, ascending, after which `on_read` is called too.
            edits: a function for each text, called with all logits (vocabulary,) and the tokens chosen so far, which
                returns the logits to choose from.

        Returns:
            The texts. `step` runs them, or ends them with an error.

        Raises:
            UserError: as for Decoder.generate, or invalid states. Nothing was added then.
        """
        reader = None if start is None else self._begun(start)
        position = 0 if reader is None else reader.position
        signature = self._all.signature
        checked = token_ids(ids, signature, 1)
        requests = [generate.request(signature, position, checked, max_tokens, each) for each in samplings]
        prompt = checked.array[0]
        before = [*(() if start is None else start.history), *prompt.tolist()]
        watches: Sequence[Watch | None] = watch or [None] * len(requests)
        changes: Sequence[Edit | None] = edits or [None] * len(requests)
        first, forced = int(prompt[0 if scored else -1]), prompt.size - 1 if scored else 0
        texts = [
            Text(each, max_tokens, before, first, forced, watched, edit)
            for each, watched, edit in zip(requests, watches, changes, strict=True)
        ]
        end = 0 if scored else prompt.size - (max_tokens > 0)
        soon = self.running + self.waiting < self.capacity  # else no reader yet, which would copy the states
        parts = deque(np.split(prompt[:end], [mark for mark in marks if 0 < mark < end]))
        self._waiting.append(_Prompt(texts, parts, start, on_read, reader if soon else None))
        return texts

    def remove(self, text: Text) -> None:
        """Remove a text; its row is free in the next step."""
        text.ended = text.ended or REMOVED
        for prompts in (self._waiting, self._reading):
            for prompt in [prompt for prompt in prompts if not prompt.going]:
                prompts.remove(prompt)
        self._ready = deque(pair for pair in self._ready if pair[0].ended is None)

    def states(self, text: Text) -> dict[str, NDArray[Any]]:
        """The states of a text that has been read, until the step after its end, as for Decoder.set_state.

        All tokens but the newest have been read.
        """
        for other, reader in self._ready:
            if other is text:
                return reader.state()
        self._catch_up()
        return self._all.state(self._rows.index(text))

    def read(self) -> None:
        """Begin waiting prompts if rows are free, and read a chunk of those that have begun.

        Prompts take turns chunk by chunk, so that a short one does not wait for a long one.
        """
        claimed = self.running
        while self._waiting and claimed < self.capacity:
            prompt = self._waiting.popleft()
            prompt.reader, prompt.start = prompt.reader or self._begun(prompt.start), None
            claimed += len(prompt.going)
            self._reading.append(prompt)
        left = self.chunk
        while self._reading and left > 0:
            prompt = self._reading.popleft()
            part, prompt.unread[0] = prompt.unread[0][: self.chunk], prompt.unread[0][self.chunk :]
            left -= part.size
            try:
                self._read(prompt, part)
            except UserError as error:
                for text in prompt.going:
                    text.fail(error)
                    self._ended.append(Chosen(text, None))

    def step(self) -> list[Chosen]:
        """Read a chunk of prompts and one token of every text that has a row.

        Returns:
            The chosen tokens, and the texts that ended without one. A text that has ended leaves its row. A token is -1
            if the logits are not finite.

        Raises:
            UserError: the graph does not run; no text has changed then.
        """
        self.read()
        self._settle()
        ended, self._ended = self._ended, []
        live = self._live()
        if not live:
            return ended
        try:
            logits, tokens = self._logits(live)
        except UserError:
            self._ended = ended
            raise
        chosen = [
            Chosen(text, text.advance(logits[row], None if tokens is None else tokens[row]))
            for row, text in live.items()
        ]
        if self._ahead is not None:
            self._ahead[1].chose(self._ahead[0].token)
        return ended + [each for each in chosen if each.token is not None or each.text.ended]

    def _logits(self, live: Mapping[int, Text]) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
        """Logits (rows, N) after the newest token of each text, and their tokens as next_logits."""
        first = next(iter(live.values()))
        if self._draft is not None and len(self._rows) == 1 and not first.forced:
            if self._ahead is None:
                pace = self._paces.setdefault(first, Pace(self._all.run_times))
                drafter = drafter_of(self._all, self._draft)
                if isinstance(drafter, Head) and first.hidden is not None:
                    drafter.follow(first.before[-len(first.hidden) :], first.hidden)
                    first.hidden = None
                self._ahead = first, Ahead(self._all, first.request, drafter, first.seen, pace, self._drafted)
            logits, tokens = self._ahead[1].logits(first.left, first.limit)
            return logits[np.newaxis], None if tokens is None else tokens[np.newaxis]
        ids = np.zeros((len(self._rows), 1), np.int64)  # a free row reads token 0
        ids[list(live), 0] = [text.token for text in live.values()]
        limits = [text.limit for text in live.values()]
        return generate.next_logits(self._all, TokenIds(ids), min(limits) and max(limits))

    def _catch_up(self) -> None:
        """Let the rows have read all tokens but the newest, as they have without drafts."""
        if self._ahead is not None:
            self._ahead[1].finish()
        self._ahead = None

    def _live(self) -> dict[int, Text]:
        """The unfinished texts that have a row, by row."""
        return {row: text for row, text in enumerate(self._rows) if text is not None and text.ended is None}

    def _begun(self, start: Start | None) -> Decoder:
        """A decoder of one row that continues from `start`."""
        reader = self._all.fork()
        if start is not None and start.states is not None:
            reader.set_state(start.states, start.position)
        if start is not None and start.adapter is not None:
            reader.adapt(start.adapter)
        return reader

    def _read(self, prompt: _Prompt, part: NDArray[np.int64]) -> None:
        """Read a chunk of a prompt; after its last one its texts are ready for rows."""
        reader = prompt.reader
        assert reader is not None
        ids, latest = TokenIds(part[np.newaxis]), self._heads and len(prompt.unread) == 1 and not prompt.unread[0].size
        if part.size and latest:
            hidden = read_latest(reader, ids)
            for text in prompt.texts:
                text.hidden = hidden
        elif part.size:
            reader.prefill(ids)
        if not prompt.unread[0].size:
            prompt.unread.popleft()
            if prompt.on_read is not None:
                prompt.on_read(reader)
        if prompt.unread:
            self._reading.append(prompt)
            return
        for text in prompt.going:
            if text.left == 0 and not text.forced:
                text.ended = LENGTH
                self._ended.append(Chosen(text, None))
            else:
                self._ready.append((text, reader))

    def _settle(self) -> None:
        """Give rows to texts that are ready, and remove free rows if there are many.

        A text takes a free row in place; all rows are copied only if their number changes.
        """
        live = self._live()
        if self._ahead is not None and self._ahead[0].ended is not None:
            self._ahead = None  # nobody needs its states any more
        joining = [self._ready.popleft() for _ in range(min(len(self._ready), self.capacity - len(live)))]
        if not live and not joining:
            return
        if joining:
            self._catch_up()
        free = [row for row in range(len(self._rows)) if row not in live]
        spare = len(free) - len(joining)
        if spare == 0 or (spare > 0 and self._may_spare(spare)):
            for row in free:
                self._rows[row] = None
            for row, (text, reader) in zip(free, joining, strict=False):
                self._all.put(row, reader)
                self._rows[row] = text
            return
        parts: list[tuple[Decoder, list[int]]] = [(self._all, list(live))] if live else []
        self._all.take([*parts, *((reader, [0]) for _, reader in joining)])
        self._rows = [*live.values(), *(text for text, _ in joining)]

    def _may_spare(self, rows: int) -> bool:
        """Whether `rows` rows may stay free: few, or soon taken. Their positions grow, so they must be unlimited."""
        soon = bool(self._reading or self._waiting)
        return self._all.signature.reach is None and (soon or rows * SPARE <= len(self._rows))

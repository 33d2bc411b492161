"""Many texts through one graph at once, each with its own states, added and removed between steps.

    batch = Batch(Decoder("model.onnx"))
    for prompt in prompts:
        batch.add(tokenizer.encode(prompt), max_tokens=100)
    while batch.sequences:
        for handle, token in batch.step().items():
            ...

The usual way with softmax pads every cache to the longest, or pages it. Here a text is one row of each state, whatever
its length, so a text that comes or goes is a row more or less. A step reads the weights once for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import require_kind
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError, shown
from t2r_runtime.session.stepper import TokenIds
from t2r_runtime.session.threads import InUse, alone

NOT_FINITE = -1  # in place of a token, as a generation graph has it


@dataclass
class _Sequence:
    """What one text is continued by, and its newest token, which no step has read yet."""

    request: generate.Request
    left: int
    token: int


class Batch:
    """Texts side by side; none so far.

    Args:
        decoder: whose graph they go through. It keeps its own text.

    Raises:
        UserError: caches that grow, whose lengths would have to be the same; or a graph of a fixed batch.

    A batch belongs to one thread at a time, as a decoder does.

    Each text is what it would be alone, but for rounding: products of more rows may add in another order. With the
    quantization int8 texts influence each other a little, since it scales a whole batch at once.
    """

    def __init__(self, decoder: Decoder) -> None:
        require_kind(decoder, Decoder, "a Decoder", "graph")
        signature = decoder.signature
        signature.require_constant("for texts of different lengths side by side")
        if signature.batch is not None:
            raise UserError("a graph of any batch", f"one of {signature.batch}", "export it without --batch", "batch")
        self.in_use = InUse("batch", "give each thread a Batch of its own")
        self._all = decoder.fork()
        self._count = itertools.count()
        self._sequences: dict[int, _Sequence] = {}
        self._rows: list[int] = []  # whose states the rows of `_all` are; some may have ended
        self._new: dict[int, Decoder] = {}  # those that are in no row yet

    @property
    def sequences(self) -> tuple[int, ...]:
        """The handles of the texts that go on, oldest first."""
        return tuple(self._sequences)

    @alone
    def add(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        states: Mapping[str, ArrayLike] | None = None,
    ) -> int:
        """Begin a text: read its prompt but for the last token, which the next step reads.

        Args:
            ids, max_tokens, sampling: as for Decoder.generate.
            states: what the text goes on from, as Decoder.set_state takes it (of a translator, what `encode` gives).

        Returns:
            The text's handle: 0, 1, 2, … in order of addition.

        Raises:
            UserError: as for Decoder.generate. The batch is as before then.
        """
        reader = self._all.fork()
        if states is not None:
            reader.set_state(states)
        request = generate.checked(reader, ids, max_tokens, sampling)
        if request.all_but_last is not None:
            reader.prefill(request.all_but_last)
        handle = next(self._count)
        self._new[handle] = reader
        self._sequences[handle] = _Sequence(request, max_tokens, request.last)
        return handle

    @alone
    def step(self) -> dict[int, int]:
        """One more token for every text.

        Returns:
            Handle → token, oldest first; empty if there are no texts. A text ends, and is removed, with a stop token or
            its last of max_tokens; and with -1 if its logits are not finite, whatever the others' are.
        """
        if not self._sequences:
            return {}
        self._settle()
        chosen = [self._sequences[handle] for handle in self._rows]
        limits = [sequence.request.limit for sequence in chosen]
        ids = TokenIds(np.array([[sequence.token] for sequence in chosen]))
        logits, tokens = generate.next_logits(self._all, ids, min(limits) and max(limits))
        written = {}
        for row, handle in enumerate(self._rows):
            written[handle] = self._choose(handle, row, logits[row], None if tokens is None else tokens[row])
        return written

    @alone
    def remove(self, handle: int) -> dict[str, NDArray[Any]]:
        """End a text.

        Returns:
            Its states, as Decoder.set_state takes them. All but its newest token has been read.

        Raises:
            UserError: there is no such text, or it has ended.
        """
        if type(handle) is not int or handle not in self._sequences:
            going = ", ".join(map(str, self._sequences)) or "none"
            raise UserError(
                f"the handle of a text that goes on: {going}",
                shown(handle),
                "see Batch.sequences",
                "batch",
            )
        del self._sequences[handle]
        alone = self._new.pop(handle, None)
        if alone is None:
            alone = self._all.fork()
            alone.take([(self._all, [self._rows.index(handle)])])
        return alone.state()

    def _choose(self, handle: int, row: int, logits: NDArray[np.float32], tokens: NDArray[np.int64] | None) -> int:
        sequence = self._sequences[handle]
        request = sequence.request
        finite = bool(np.isfinite(logits.max()))  # NaN, if there is one
        occurred = self._all.history(row) if request.sampler.sampling.looks_back else ()
        sequence.token = request.choose(logits, tokens, occurred) if finite else NOT_FINITE
        sequence.left -= 1
        if not finite or sequence.left == 0 or sequence.token in request.stop:
            del self._sequences[handle]
        return sequence.token

    def _settle(self) -> None:
        """Make the rows those of the texts that go on: only what has come or gone since the last step costs."""
        if self._rows == list(self._sequences):
            return
        kept = [row for row, handle in enumerate(self._rows) if handle in self._sequences]
        parts: list[tuple[Decoder, list[int]]] = [(self._all, kept)] if kept else []
        self._all.take([*parts, *((decoder, [0]) for decoder in self._new.values())])
        self._rows, self._new = list(self._sequences), {}

"""Continuous batching: texts are added and removed between steps.

    batch = Batch(Decoder("model.onnx"))
    for prompt in prompts:
        batch.add(tokenizer.encode(prompt), max_tokens=100)
    while batch.sequences:
        for handle, token in batch.step().items():
            ...

Softmax attention needs padded or paged caches. Here a text of any length is one row of each state. A step reads the
weights once for all texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import require_kind, require_value
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import TokenIds
from t2r_runtime.session.threads import InUse, alone

NOT_FINITE = -1  # replaces a token, as in a generation graph


@dataclass
class _Sequence:
    """A text, and its newest token, which no step has read."""

    request: generate.Request
    left: int
    token: int


class Batch:
    """Generates several texts at once.

    Args:
        decoder: its graph is used; its own text is not affected.

    Raises:
        UserError: the graph has growing caches, whose lengths would have to be equal, or a fixed batch.

    A batch must be used by one thread at a time.

    Each text equals the one generated alone, except for rounding: products of more rows may sum in another order. int8
    quantization scales activations over the batch, so texts influence each other slightly.
    """

    def __init__(self, decoder: Decoder) -> None:
        require_kind(decoder, Decoder, "a Decoder", "graph")
        signature = decoder.signature
        signature.require_constant("for texts of different lengths side by side")
        if signature.batch is not None:
            raise UserError("a graph of any batch", f"one of {signature.batch}", "export it without --batch", "batch")
        self.in_use = InUse("batch", "give each thread its own Batch")
        self._all = decoder.fork()
        self._count = itertools.count()
        self._sequences: dict[int, _Sequence] = {}
        self._rows: list[int] = []  # handles of the rows of `_all`; some may have ended
        self._new: dict[int, Decoder] = {}  # texts without a row in `_all`

    @property
    def sequences(self) -> tuple[int, ...]:
        """Handles of the unfinished texts, oldest first."""
        return tuple(self._sequences)

    @alone
    def add(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        states: Mapping[str, ArrayLike] | None = None,
    ) -> int:
        """Add a text and read its prompt except for the last token, which the next step reads.

        Args:
            ids, max_tokens, sampling: as for Decoder.generate.
            states: states to start from, as for Decoder.set_state (for translators the result of `encode`).

        Returns:
            The handle: 0, 1, 2, … in order of addition.

        Raises:
            UserError: as for Decoder.generate. The batch is unchanged then.
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
        """Generate one token of every text.

        Returns:
            Handle → token, oldest first. A text is removed after a stop token or max_tokens, and with the token -1 if
            its logits are not finite.
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
        """Remove a text.

        Returns:
            Its states, as for Decoder.set_state. All tokens but the newest have been read.

        Raises:
            UserError: the handle is unknown, or its text has ended.
        """
        going = ", ".join(map(str, self._sequences)) or "none"
        known = type(handle) is int and handle in self._sequences
        require_value(known, f"the handle of an unfinished text: {going}", handle, "batch")
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
        """Update the rows if texts were added or removed since the last step."""
        if self._rows == list(self._sequences):
            return
        kept = [row for row, handle in enumerate(self._rows) if handle in self._sequences]
        parts: list[tuple[Decoder, list[int]]] = [(self._all, kept)] if kept else []
        self._all.take([*parts, *((decoder, [0]) for decoder in self._new.values())])
        self._rows, self._new = list(self._sequences), {}

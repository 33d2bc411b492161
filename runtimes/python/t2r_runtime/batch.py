"""Many texts through one graph at once, each with its own states, added and removed between steps.

    batch = Batch(Decoder("model.onnx"))
    for prompt in prompts:
        batch.add(text.encode(prompt), max_tokens=100)
    while batch.texts:
        for handle, token in batch.step().items():
            ...

The usual way with softmax pads every cache to the longest, or pages it. Here a text is one row of each state, whatever
its length, so a text that comes or goes is a row more or less. A step reads the weights once for all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime import generate
from t2r_runtime.decoder import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.sampling import Sampler, Sampling

NOT_FINITE = -1  # in place of a token: as a graph that writes by itself has it

States = dict[str, NDArray[Any]]


@dataclass
class _Text:
    """One text: what it is continued by, and its newest token, which no step has read yet."""

    sampler: Sampler
    stop: frozenset[int]
    left: int
    token: int


class Batch:
    """Texts side by side; none so far.

    Args:
        decoder: whose graph they go through. It keeps its own text, and must not run while a batch does.

    Raises:
        UserError: caches that grow, whose lengths would have to be the same; or a graph of a fixed batch.

    Each text is what it would be alone, but for rounding: products of more rows may add in another order. With the
    quantization int8 texts influence each other a little, since it scales a whole batch at once.
    """

    def __init__(self, decoder: Decoder) -> None:
        signature = decoder.signature
        signature.require_constant("for texts of different lengths side by side")
        if signature.batch is not None:
            raise UserError("a graph of any batch", f"one of {signature.batch}", "export it without --batch")
        self._reader, self._all = decoder.fork(), decoder.fork()
        self._top = signature.top_k or 0
        self._count = itertools.count()
        self._texts: dict[int, _Text] = {}
        self._rows: list[int] = []  # whose states the rows of `_all` are; some may have ended
        self._new: dict[int, States] = {}  # those that are in no row yet

    @property
    def texts(self) -> tuple[int, ...]:
        """The handles of the texts that go on, oldest first."""
        return tuple(self._texts)

    def add(self, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling()) -> int:
        """Begin a text: read its prompt but for the last token, which the next step reads.

        Args:
            ids, max_tokens, sampling: as for Decoder.generate.

        Returns:
            The text's handle: 0, 1, 2, … in order of addition.

        Raises:
            UserError: as for Decoder.generate. The batch is as before then.
        """
        self._reader.reset()
        prompt, stop = generate.checked(self._reader, ids, max_tokens, sampling)
        if prompt.size > 1:
            self._reader.prefill(prompt[:-1])
        handle = next(self._count)
        self._new[handle] = self._reader.state()
        self._texts[handle] = _Text(Sampler(sampling), stop, max_tokens, int(prompt[-1]))
        return handle

    def step(self) -> dict[int, int]:
        """One more token for every text.

        Returns:
            Handle → token, oldest first; empty if there are no texts. A text ends, and is removed, with a stop token or
            its last of max_tokens; and with -1 if its logits are not finite, whatever the others' are.
        """
        if not self._texts:
            return {}
        self._settle()
        ids = np.array([self._texts[handle].token for handle in self._rows])[:, np.newaxis]
        few = all(0 < self._texts[handle].sampler.sampling.limit <= self._top for handle in self._rows)
        logits, tokens = self._all.top(ids) if few else (self._all.prefill(ids), None)
        written = {}
        for row, handle in enumerate(self._rows):
            written[handle] = self._choose(handle, logits[row], None if tokens is None else tokens[row])
        return written

    def remove(self, handle: int) -> States:
        """End a text.

        Returns:
            Its states, as Decoder.set_state takes them. All but its newest token has been read.

        Raises:
            UserError: there is no such text, or it has ended.
        """
        if handle not in self._texts:
            texts = ", ".join(map(str, self._texts)) or "none"
            raise UserError(f"the handle of a text that goes on: {texts}", repr(handle), "see Batch.texts")
        del self._texts[handle]
        if handle in self._new:
            return self._new.pop(handle)
        row = self._rows.index(handle)
        return {name: array[row : row + 1].copy() for name, array in self._all.state().items()}

    def _choose(self, handle: int, logits: NDArray[np.float32], tokens: NDArray[np.int64] | None) -> int:
        text = self._texts[handle]
        finite = bool(np.isfinite(logits.max()))  # NaN, if there is one
        text.token = text.sampler.pick(logits, tokens) if finite else NOT_FINITE
        text.left -= 1
        if not finite or text.left == 0 or text.token in text.stop:
            del self._texts[handle]
        return text.token

    def _settle(self) -> None:
        """Make the rows those of the texts that go on: only what has come or gone since the last step costs."""
        if self._rows == list(self._texts):
            return
        kept = [row for row, handle in enumerate(self._rows) if handle in self._texts]
        parts = [{name: array[kept] for name, array in self._all.state().items()}] if kept else []
        parts += self._new.values()
        self._all.set_state({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        self._rows, self._new = list(self._texts), {}

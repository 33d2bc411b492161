"""Continuous batching: texts are added and removed between steps.

    batch = Batch(Decoder("model.onnx"))
    for prompt in prompts:
        batch.add(tokenizer.encode(prompt), max_tokens=100)
    while batch.sequences:
        for handle, token in batch.step().items():
            ...

Softmax attention needs padded or paged caches. Here a text of any length is one row of each state. A step reads the
weights once for all texts. It is built on t2r_runtime.decode.pool, which adds a row limit, a queue and prompt chunks.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import require_int, require_value
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.pool import Pool
from t2r_runtime.decode.text import NOT_FINITE, Start, Text
from t2r_runtime.session.threads import InUse, alone

__all__ = ["NOT_FINITE", "Batch"]


class Batch:
    """Generates several texts at once.

    Args:
        decoder: its graph is used; its own text is not affected.

    Raises:
        UserError: the graph has a fixed batch or growing caches, whose lengths would have to be equal.

    A batch must be used by one thread at a time.

    Each text equals the one generated alone, except for rounding: products of more rows may sum in another order. int8
    quantization scales activations over the batch, so texts influence each other slightly.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._pool = Pool(decoder, chunk=sys.maxsize)
        self.in_use = InUse("batch", "give each thread its own Batch")
        self._count = itertools.count()
        self._texts: dict[int, Text] = {}  # unfinished

    @property
    def sequences(self) -> tuple[int, ...]:
        """Handles of the unfinished texts, oldest first."""
        return tuple(self._texts)

    @alone
    def add(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        states: Mapping[str, ArrayLike] | None = None,
        adapter: str | None = None,
    ) -> int:
        """Add a text and read its prompt except for the last token, which the next step reads.

        Args:
            ids, max_tokens, sampling: as for Decoder.generate.
            states: states to start from, as for Decoder.set_state (for translators the result of `encode`).
            adapter: the text's low-rank adapter, one of `signature.adapters`; None: that of the states or the decoder.

        Returns:
            The handle: 0, 1, 2, … in order of addition.

        Raises:
            UserError: as for Decoder.generate. The batch is unchanged then.
        """
        require_int(max_tokens, "max_tokens", 1, "sampling")
        start = None if states is None and adapter is None else Start(states, adapter=adapter)
        (text,) = self._pool.add(ids, max_tokens, [sampling], start)
        self._pool.read()
        if text.error is not None:
            raise text.error
        handle = next(self._count)
        self._texts[handle] = text
        return handle

    @alone
    def step(self) -> dict[int, int]:
        """Generate one token of every text.

        Returns:
            Handle → token, oldest first. A text is removed after a stop token or max_tokens, and with the token -1 if
            its logits are not finite.
        """
        chosen = {id(text): token for text, token in self._pool.step()}
        found = {handle: token for handle, text in self._texts.items() if (token := chosen.get(id(text))) is not None}
        self._texts = {handle: text for handle, text in self._texts.items() if text.ended is None}
        return found

    @alone
    def remove(self, handle: int) -> dict[str, NDArray[Any]]:
        """Remove a text.

        Returns:
            Its states, as for Decoder.set_state. All tokens but the newest have been read.

        Raises:
            UserError: the handle is unknown, or its text has ended.
        """
        going = ", ".join(map(str, self._texts)) or "none"
        known = type(handle) is int and handle in self._texts
        require_value(known, f"the handle of an unfinished text: {going}", handle, "batch")
        text = self._texts.pop(handle)
        states = self._pool.states(text)
        self._pool.remove(text)
        return states

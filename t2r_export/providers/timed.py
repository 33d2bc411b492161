"""A timed decoder, and a program that opens one in a separate process. Imports only numpy and t2r_runtime.

    python -m t2r_export.providers.timed GRAPH OPTIONS

opens GRAPH with the arguments of a Decoder in OPTIONS, a JSON object, chooses one token, and prints the bytes of memory
that the process holds, or null without /proc.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime import Decoder

VECTORS = 64  # number of distinct inputs for graphs that read vectors


class TimedDecoder:
    """A Decoder that reads random prompts and decodes greedily; same constructor arguments. Methods return seconds."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        self.decoder = Decoder(graph, *arguments, **options)
        self._next = np.zeros(self.decoder.batch, np.int64)
        size = self.decoder.signature.input_size
        noise = np.random.default_rng(0).standard_normal((VECTORS, size or 1), np.float32)
        self._vectors = None if size is None else noise  # input vectors that replace tokens

    def prompt(self, tokens: int) -> float:
        """Read a random prompt from the initial state and choose the next token."""
        return self._prompt(tokens, 1)

    def prompt_by_steps(self, tokens: int) -> float:
        """The same with the step graph, one token at a time."""
        return self._prompt(tokens, tokens)

    def _prompt(self, tokens: int, parts: int) -> float:
        shape = self.decoder.batch, tokens
        ids = np.random.default_rng(0).integers(0, self.decoder.signature.vocab_size, shape)
        self.decoder.reset()
        start = time.perf_counter()
        for part in np.split(ids, parts, axis=1):
            self._read(part)
        return time.perf_counter() - start

    def steps(self, count: int, warmup: int) -> list[float]:
        """Continue from the current state; choosing the next token is part of a step.

        Args:
            warmup: untimed steps before the others.

        Returns:
            Seconds of each of `count` steps.
        """
        seconds = []
        for _ in range(warmup + count):
            start = time.perf_counter()
            self._read(self._next[:, np.newaxis])
            seconds.append(time.perf_counter() - start)
        return seconds[warmup:]

    def _read(self, ids: NDArray[np.int64]) -> None:
        """Read ids (B, T), or a vector for each, and choose the most likely next token of each sequence."""
        read = ids if self._vectors is None else self._vectors[ids % VECTORS]
        if self.decoder.signature.top_k is None:
            self._next = self.decoder.prefill(read).argmax(-1)
        else:
            self._next = self.decoder.top_k(read)[1][:, 0]


def memory() -> int | None:
    """Resident bytes of this process; None without /proc."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), None)


if __name__ == "__main__":
    timed = TimedDecoder(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    timed.prompt(1)
    sys.stdout.write(json.dumps(memory()))

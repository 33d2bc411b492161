"""Timed decoders and translators for benchmark processes. Imports only numpy, ONNX Runtime and t2r_runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime import Beam, Decoder, Translator
from t2r_runtime.contract.signature import Signature

VECTORS = 64  # number of distinct inputs for graphs that read vectors


class Timed:
    """Base of the timed classes."""

    def memory(self) -> int | None:
        """Resident bytes of this process; None without /proc."""
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), None)


class TimedTranslator(Timed):
    """A Translator with timed methods; same constructor arguments."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        self._translator = Translator(graph, *arguments, **options)

    def about(self) -> tuple[Signature, dict[str, int]]:
        """Signature of the step graph, and number of nodes per provider."""
        return self._translator.signature, self._translator.placement

    def translate(self, sources: Sequence[Sequence[int]], beam: Beam, batch: int) -> tuple[float, int]:
        """Seconds to translate the sources, and the number of tokens in the translations."""
        start = time.perf_counter()
        found = [best[0].tokens for best in self._translator.translate(sources, beam, batch)]
        return time.perf_counter() - start, sum(map(len, found))


class TimedDecoder(Timed):
    """A Decoder that reads random prompts and decodes greedily; same constructor arguments. Methods return seconds."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        self._decoder = Decoder(graph, *arguments, **options)
        self._next = np.zeros(self._decoder.batch, np.int64)
        size = self._decoder.signature.input_size
        noise = np.random.default_rng(0).standard_normal((VECTORS, size or 1), np.float32)
        self._vectors = None if size is None else noise  # input vectors that replace tokens

    def about(self) -> tuple[Signature, dict[str, int]]:
        """Signature of the graph, and number of nodes per provider."""
        return self._decoder.signature, self._decoder.placement

    def prompt(self, tokens: int) -> float:
        """Read a random prompt from the initial state and choose the next token."""
        return self._prompt(tokens, 1)

    def prompt_by_steps(self, tokens: int) -> float:
        """The same with the step graph, one token at a time."""
        return self._prompt(tokens, tokens)

    def _prompt(self, tokens: int, parts: int) -> float:
        shape = self._decoder.batch, tokens
        ids = np.random.default_rng(0).integers(0, self._decoder.signature.vocab_size, shape)
        self._decoder.reset()
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
        if self._decoder.signature.top_k is None:
            self._next = self._decoder.prefill(read).argmax(-1)
        else:
            self._next = self._decoder.top_k(read)[1][:, 0]

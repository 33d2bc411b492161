"""Graphs with a clock beside them, for a process of its own: what it holds is numpy, ONNX Runtime and t2r_runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime import Beam, Decoder, Translator
from t2r_runtime.contract.signature import Signature


class Timed:
    """What is asked of every process."""

    def memory(self) -> int | None:
        """Resident bytes of this process; None where there is no /proc to ask."""
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), None)


class TimedTranslator(Timed):
    """A translator's graphs. Arguments as of Translator."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        self._translator = Translator(graph, *arguments, **options)

    def about(self) -> tuple[Signature, dict[str, int]]:
        """The step graph's signature, and how many of its nodes each provider runs."""
        return self._translator.signature, self._translator.placement

    def translate(self, sources: Sequence[Sequence[int]], beam: Beam, batch: int) -> tuple[float, int]:
        """Seconds to translate the sources, and how many tokens their translations have."""
        start = time.perf_counter()
        found = [best[0].tokens for best in self._translator.translate(sources, beam, batch)]
        return time.perf_counter() - start, sum(map(len, found))


class TimedDecoder(Timed):
    """A graph that reads random prompts and goes on greedily; its methods return seconds. Arguments as of Decoder."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        self._decoder = Decoder(graph, *arguments, **options)
        self._next = np.zeros(self._decoder.batch, np.int64)

    def about(self) -> tuple[Signature, dict[str, int]]:
        """The graph's signature, and how many of its nodes each provider runs."""
        return self._decoder.signature, self._decoder.placement

    def prompt(self, tokens: int) -> float:
        """Read a prompt of that many tokens from the start of a text, up to the token that follows it."""
        ids = self._random(tokens)
        self._decoder.reset()
        start = time.perf_counter()
        self._read(ids)
        return time.perf_counter() - start

    def prompt_by_steps(self, tokens: int) -> float:
        """The same by the step graph alone, one token at a time."""
        ids = self._random(tokens)
        self._decoder.reset()
        start = time.perf_counter()
        for step in ids.T:
            self._read(step[:, np.newaxis])
        return time.perf_counter() - start

    def steps(self, count: int, warmup: int) -> list[float]:
        """Go on from where the decoder is; the choice of the next token is part of a step.

        Args:
            warmup: steps before those that count.

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
        """Read ids (B, T) and choose the most likely next token of each sequence."""
        if self._decoder.signature.top_k is None:
            self._next = self._decoder.prefill(ids).argmax(-1)
        else:
            self._next = self._decoder.top_k(ids)[1][:, 0]

    def _random(self, tokens: int) -> NDArray[np.int64]:
        shape = self._decoder.batch, tokens
        return np.random.default_rng(0).integers(0, self._decoder.signature.vocab_size, shape)

"""Threads that work on the texts of requests: /health, steps and session look-ups never wait for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from t2r_runtime.serve.errors import wrong

T = TypeVar("T")
MAX_TEXT = 1 << 21  # characters of all texts of one request: 8 for each token that it may have
PER_TOKEN = 16  # characters of a token, on average, at most: English has 4, and rows of blanks have more
WINDOW = 1 << 14  # characters of a list of texts between which other requests take turns


class Encoders:
    """Encodes texts in separate threads, without Python's lock.

    A text of more than `WINDOW` characters waits only for others of that size, and shorter ones never wait for it. One
    text is one call, since a tokenizer may merge characters across any place where it could be cut.
    """

    def __init__(self) -> None:
        self._short, self._long = ThreadPoolExecutor(2, "encode"), ThreadPoolExecutor(1, "encode long")

    async def each(self, work: Callable[[str], T], texts: Sequence[str], tokens: int | None, param: str) -> list[T]:
        """Call a function with each text.

        Args:
            tokens: maximum number of tokens of a text; None if any number is allowed.
            param: the field of the texts.

        Raises:
            ApiError: the texts have too many characters, or as `work` does.
        """
        require_characters(texts, tokens, param)
        found: list[T] = []
        for window in _windows(texts):
            found += await self.run(sum(map(len, window)), functools.partial(list, map(work, window)))
        return found

    async def run(self, characters: int, work: Callable[[], T]) -> T:
        """Call a function whose work is in proportion to this number of characters."""
        pool = self._long if characters > WINDOW else self._short
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def stop(self) -> None:
        """End the threads."""
        for pool in (self._short, self._long):
            pool.shutdown()


def require_characters(texts: Sequence[str], tokens: int | None, param: str) -> None:
    """Raise ApiError if texts have too many characters, before any work on them."""
    total, longest = sum(map(len, texts)), max(map(len, texts), default=0)
    if total > MAX_TEXT:
        raise wrong(f"at most {MAX_TEXT:,} characters of texts", f"{total:,}", "send less", param)
    if tokens is not None and longest > PER_TOKEN * tokens:
        expected = f"a text of at most {PER_TOKEN * tokens:,} characters, for {tokens:,} tokens"
        raise wrong(expected, f"{longest:,}", "send less", param)


def _windows(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in groups of at most `WINDOW` characters; a longer one is alone."""
    window: list[str] = []
    size = 0
    for text in texts:
        if window and size + len(text) > WINDOW:
            yield window
            window, size = [], 0
        window.append(text)
        size += len(text)
    if window:
        yield window

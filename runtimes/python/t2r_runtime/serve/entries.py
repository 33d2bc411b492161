"""Entries of a cache within a limit of bytes; the least valuable ones are evicted first.

The value of states is what they save per byte and per second since their last use (LNC-R of WATCHMAN, Scheuermann et
al., VLDB 1996): the number of tokens to read again without them, from the longest kept prefix of their text.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
AT_ONCE = 16  # a full cache evicts one entry in this many, since an eviction looks at all of them
SOONEST = 1e-3  # seconds since the last use, at least


@dataclass(eq=False)
class Entry(Generic[T]):
    """States after the first `tokens` tokens of a text.

    Attributes:
        digest: hash of these tokens.
        size: in bytes.
        used: time of the last use, in seconds since the epoch.
        held: the states, or where they are.
        prefix: digest of the longest prefix that is kept too, as far as known; "" for none.
    """

    digest: str
    tokens: int
    size: int
    used: float
    held: T
    prefix: str = ""


class Entries(Generic[T]):
    """Entries by digest.

    Attributes:
        bytes: sum of their sizes.
        lengths: number of entries by number of tokens.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, Entry[T]] = {}
        self.bytes = 0
        self.lengths: Counter[int] = Counter()

    def get(self, digest: str) -> Entry[T] | None:
        """The entry with this digest."""
        return self._kept.get(digest)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._kept.values())

    def room(self, size: int) -> bool:
        """Whether an entry of this size evicts none."""
        return self.bytes + size <= self._max_bytes

    def add(self, entry: Entry[T]) -> list[Entry[T]]:
        """Add an entry, or replace the one with its digest; returns the evicted ones, perhaps with it."""
        self.remove(entry.digest)
        self._kept[entry.digest] = entry
        self.bytes += entry.size
        self.lengths[entry.tokens] += 1
        return self._evict() if self.bytes > self._max_bytes else []

    def remove(self, digest: str) -> None:
        """Remove the entry with this digest, if there is one."""
        gone = self._kept.pop(digest, None)
        if gone is not None:
            self.bytes -= gone.size
            self.lengths[gone.tokens] -= 1
            if not self.lengths[gone.tokens]:
                del self.lengths[gone.tokens]

    def link(self, digests: Sequence[str]) -> None:
        """Record that the kept ones of these digests are prefixes of each other, shortest first."""
        before = ""
        for digest in digests:
            if (entry := self._kept.get(digest)) is not None:
                entry.prefix, before = before, digest

    def _evict(self) -> list[Entry[T]]:
        now, gone = time.time(), list[Entry[T]]()
        longer = defaultdict[str, list[Entry[T]]](list)
        for entry in self._kept.values():
            longer[entry.prefix].append(entry)
        order = [(self._value(entry, now), entry.digest) for entry in self._kept.values()]
        heapq.heapify(order)
        fewest = len(order) // AT_ONCE
        while self.bytes > self._max_bytes or len(gone) < fewest:
            value, digest = heapq.heappop(order)
            least = self._kept.get(digest)
            if least is None or value != self._value(least, now):  # gone, or of more value since its prefix is gone
                continue
            self.remove(digest)
            gone.append(least)
            for entry in longer.pop(digest, ()):
                entry.prefix = least.prefix
                longer[least.prefix].append(entry)
                heapq.heappush(order, (self._value(entry, now), entry.digest))
        return gone

    def _value(self, entry: Entry[T], now: float) -> float:
        prefix = self._kept.get(entry.prefix)
        tokens = entry.tokens - (0 if prefix is None else prefix.tokens)
        return tokens / max(entry.size, 1) / max(now - entry.used, SOONEST)

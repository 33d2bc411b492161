"""What a cache of known prefixes reuses of given texts, by a second, literal implementation of its rule.

Where states are evicted, all have the same size, so that a limit of bytes is one of states; and no value is close to
another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from golden.adapters import NAMES
from golden.choices import ATTEMPTS, NearAnEdge, text
from golden.computed import Eager
from golden.models import checkpoint

NAME = "prefixes.json"
TURNS = 20
SOONEST = Fraction(1, 1000)  # seconds since the last use, at least
Key = tuple[str | None, tuple[int, ...]]  # an adapter and tokens


class NearATie(Exception):
    """Two states of equal value whose tokens and ages differ: rounding would choose one."""


class Rule:
    """The states after all texts, answers and blocks of tokens, or the `room` of them that save most (LNC-R)."""

    def __init__(self, room: int, block: int) -> None:
        self.room, self.block = room, block
        self.used: dict[Key, int] = {}  # time of the last use, oldest states first

    def known(self, adapter: str | None, tokens: Sequence[int], most: int) -> int:
        """The length of the longest known prefix of at most `most` tokens."""
        return max((n for n in range(1, most + 1) if (adapter, tuple(tokens[:n])) in self.used), default=0)

    def read(self, now: int, adapter: str | None, tokens: Sequence[int], most: int) -> int:
        """Read a text, and return the number of its tokens that were known."""
        reused = self.known(adapter, tokens, most)
        if reused:
            self.used[adapter, tuple(tokens[:reused])] = now
        for end in range(reused + 1, len(tokens) + 1):
            if end % self.block == 0 or end == len(tokens):
                self.keep(now, adapter, tokens[:end])
        return reused

    def keep(self, now: int, adapter: str | None, tokens: Sequence[int]) -> None:
        """Keep the states after these tokens, unless they are the least valuable."""
        added = (adapter, tuple(tokens))
        if added in self.used or self.room == 0:
            self.used.update({added: now} if added in self.used else {})
            return
        while len(self.used) >= self.room:
            saved = {key: (self._saved(key), max(Fraction(now - used), SOONEST)) for key, used in self.used.items()}
            mine, value = (self._saved(added), SOONEST), {key: tokens / age for key, (tokens, age) in saved.items()}
            least = min(value, key=value.__getitem__)
            if any(
                tokens / age == value[least] and (tokens, age) != saved[least]
                for tokens, age in (*saved.values(), mine)
            ):
                raise NearATie
            if mine[0] / mine[1] < value[least]:
                return
            del self.used[least]
        self.used[added] = now

    def _saved(self, key: Key) -> int:
        """Tokens that are read again without these states."""
        return len(key[1]) - self.known(*key, len(key[1]) - 1)


def written() -> bytes:
    """Cases: each with its graph, tokens per block, states that have room, and the texts in order."""
    crossing = ("tiny", 6, 30), ("adapters", 5, 24), ("tiny", 2, 20)
    cases = [_conversation(), *(_crossing(*of, seed) for seed, of in enumerate(crossing))]
    lines = ",\n".join(json.dumps(case) for case in cases)
    return f"[\n{lines}\n]\n".encode()


def _conversation() -> dict[str, Any]:
    """A long first message, then short turns: nearly all of each text is known."""
    random, made = np.random.default_rng(8), Eager(checkpoint("prefill"))
    rule, tokens, texts = Rule(sys.maxsize, 32), random.integers(3, 17, 70).tolist(), list[dict[str, Any]]()
    for turn in range(TURNS):
        texts.append(_generated(made, rule, 3 * turn, tokens, 5))
        tokens = [*tokens, *texts[-1]["answer"], *random.integers(3, 17, 1 + turn % 2).tolist()]
    assert sum(one["reused"] for one in texts[1:]) >= 0.95 * sum(len(one["text"]) for one in texts[1:])
    return {"graph": "prefill.onnx", "block": 32, "room": None, "texts": texts}


def _crossing(graph: str, room: int, count: int, seed: int) -> dict[str, Any]:
    """Users who continue, edit and repeat texts with a common beginning, in little room; with adapters, only read."""
    made = Eager(checkpoint("tiny")) if graph == "tiny" else None
    for attempt in range(ATTEMPTS):
        random = np.random.default_rng([9, seed, attempt])
        try:
            texts = list(_texts(random, made, Rule(room, 4), count))
        except (NearAnEdge, NearATie):
            continue
        return {"graph": f"{graph}.onnx", "block": 4, "room": room, "texts": texts}
    raise AssertionError("too few attempts")


def _texts(random: np.random.Generator, made: Eager | None, rule: Rule, count: int) -> Iterator[dict[str, Any]]:
    system, now = random.integers(3, 17, 9).tolist(), 0
    users, last = [system, system, system[:5]], dict[int, tuple[str | None, list[int], int]]()
    for _ in range(count):
        now += int(random.choice([0, 0, 0, 1, 2, 5]))
        user, adapter = int(random.integers(3)), None if made else (None, *NAMES)[random.integers(3)]
        tokens = users[user][: random.integers(4, len(users[user]) + 1) if random.random() < 0.3 else None]
        tokens = (tokens + random.integers(3, 17, random.integers(0, 5)).tolist())[:30]
        asked = adapter, tokens, int(random.integers(1, 7)) if made and random.random() < 0.7 else 0
        adapter, tokens, most = last.get(user, asked) if random.random() < 0.25 else asked
        last[user] = adapter, tokens, most
        if made and most:
            one = _generated(made, rule, now, tokens, most)
        else:
            reused = rule.read(now, adapter, tokens, len(tokens) - 1)
            one = {"at": now, "adapter": adapter, "text": tokens, "reused": reused, "kept": len(rule.used)}
        yield one
        users[user] = [*tokens, *one.get("answer", [])]


def _generated(made: Eager, rule: Rule, now: int, tokens: list[int], count: int) -> dict[str, Any]:
    """A text and its greedy answer; the last token of either is not read when its states are kept."""
    answer = text(made, tokens, {"temperature": 0, "stop_tokens": []}, (), count)
    reused = rule.read(now, None, tokens[:-1], len(tokens) - 1)
    rule.keep(now, None, [*tokens, *answer[:-1]])
    return {"at": now, "adapter": None, "text": tokens, "answer": answer, "reused": reused, "kept": len(rule.used)}

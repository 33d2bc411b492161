"""Sample conversations from a chat model, which writes the user's messages too (Magpie, Xu et al. 2024, arXiv
2406.08464, section 2).

After the header of a user's message an instruction model writes a message, ends it, and answers it. So each row is one
conversation: the model writes messages, and what the chat template puts between them is given.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from t2r_export.model.sample import draw
from t2r_runtime.errors import UserError

BATCH = 32  # conversations sampled in parallel; those of a seed depend on it
LEAST_KEPT = 0.02  # share of the first TRIED conversations below which the model is no chat model
TRIED = 4 * BATCH
REPEATS, REPEATED = 4, 8  # a message that has these 8 tokens 4 times is a loop
UNLIKELY = 3.0  # standard deviations below its batch's mean log-probability at which a conversation is dropped

Read = Callable[[Tensor], Tensor]  # the next tokens (B,) → logits (B, vocabulary)


@dataclass(frozen=True)
class Turns:
    """Token ids of a chat template around messages."""

    opening: tuple[int, ...]  # before the first message of the user
    # after a message of the user, and after an answer; their first token ends the message
    between: tuple[tuple[int, ...], tuple[int, ...]]
    ends: frozenset[int] = frozenset()  # other tokens that end a message: the model's eos_tokens
    special: frozenset[int] = frozenset()  # tokens that no message has


@dataclass
class _Conversation:
    """A conversation being written."""

    turns: Turns
    ids: list[int] = field(default_factory=list)
    given: deque[int] = field(default_factory=deque)  # tokens of the template that follow
    borders: list[int] = field(default_factory=list)  # numbers of the first token of each message and of its end
    log_probability: float = 0.0
    written: int = 0  # tokens that the model chose

    def __post_init__(self) -> None:
        self.given.extend(self.turns.opening)

    def add(self, chosen: int, log_probability: float) -> int:
        """The next token: that of the template if one is due, else the chosen one."""
        if self.given:
            token = self.given.popleft()
            self.ids.append(token)
            if not self.given:
                self.borders.append(len(self.ids))  # a message begins
            return token
        self.written += 1
        self.log_probability += log_probability
        after = self.turns.between[(len(self.borders) - 1) // 2 % 2]
        if chosen == after[0] or chosen in self.turns.ends:
            self.borders.append(len(self.ids))
            chosen = after[0]
            self.given.extend(after[1:])
            if not self.given:
                self.borders.append(len(self.ids) + 1)
        self.ids.append(chosen)
        return chosen

    @property
    def messages(self) -> list[list[int]]:
        """The messages, the last one perhaps unfinished."""
        borders = [*self.borders, len(self.ids)]
        return [self.ids[first:end] for first, end in list(pairwise(borders))[::2]]

    @property
    def whole(self) -> bool:
        """Whether there is an answer, no message is empty, and none has special tokens or loops."""
        answered = len(self.borders) >= 4
        finished = self.messages if len(self.borders) % 2 else self.messages[:-1]
        return answered and all(finished) and not any(map(self._broken, self.messages))

    def _broken(self, message: list[int]) -> bool:
        grams = Counter(tuple(message[n : n + REPEATED]) for n in range(len(message) - REPEATED + 1))
        return bool(self.turns.special.intersection(message)) or max(grams.values(), default=0) >= REPEATS


def sample_conversations(
    start: Callable[[int], Read],
    turns: Turns,
    count: int,
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    on_progress: Callable[[int], object] = lambda done: None,
) -> tuple[npt.NDArray[np.int32], int]:
    """Sample conversations of `length` tokens each, and drop the broken ones.

    Dropped are conversations without a finished answer, with an empty message, with a special token of the template in
    a message, with a message that loops, and those that are much less likely than others of their batch.

    Args:
        start: begins `B` texts and returns the function that reads a token of each.
        count: tokens to write; at least one conversation.
        on_progress: called with the number of tokens of the conversations kept so far.

    Returns:
        Token ids int32 (N, length), and the number of conversations sampled for them.

    Raises:
        UserError: numbers out of range, non-finite logits, or hardly a conversation that can be kept.
    """
    if not len(turns.opening) < length:
        do = "choose a longer length"
        raise UserError(f"a length above {len(turns.opening)}, the tokens before a message", str(length), do)
    generator = torch.Generator().manual_seed(seed)
    wanted = -(-count // length)
    kept: list[list[int]] = []
    sampled = 0
    while len(kept) < wanted:
        written = _write(start(BATCH), turns, length, temperature, generator)
        sampled += BATCH
        kept += [each.ids for each in _kept(written)]
        on_progress(min(count, len(kept) * length))
        if sampled >= TRIED and len(kept) < LEAST_KEPT * sampled:
            received = f"{len(kept)} of {sampled} that have an answer and no loop"
            do = "use an instruction model, a greater length, or a lower temperature"
            raise UserError("conversations that can be kept", received, do)
    return np.array(kept[:wanted], np.int32), sampled


@torch.no_grad()
def _write(
    read: Read, turns: Turns, length: int, temperature: float, generator: torch.Generator
) -> list[_Conversation]:
    rows = [_Conversation(turns) for _ in range(BATCH)]
    token = torch.tensor([row.add(0, 0.0) for row in rows])
    for n in range(1, length):
        chosen, chances = draw(read(token), temperature, generator, n)
        each = zip(rows, chosen.tolist(), chances.log().tolist(), strict=True)
        token = torch.tensor([row.add(one, log_probability) for row, one, log_probability in each])
    return rows


def _kept(rows: list[_Conversation]) -> list[_Conversation]:
    means = np.array([row.log_probability / max(row.written, 1) for row in rows])
    least = means.mean() - UNLIKELY * means.std()
    return [row for row, mean in zip(rows, means, strict=True) if row.whole and mean >= least]

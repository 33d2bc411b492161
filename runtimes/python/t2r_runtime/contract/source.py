"""What a translator's graphs say of the source beside its states: the keys that a decoder alone does not have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

MAX_SPECIAL = 1024  # tokens that a text starts from, or that are never chosen
MAX_SOURCE_LENGTH = 1 << 20  # tokens that every source may be filled up to


@dataclass(frozen=True)
class Source:
    """How a source is read, and how a translation of it starts.

    Each field is the metadata key of its name, with `source_` before vocab_size and tokenizer.
    """

    start_states: tuple[str, ...]  # states that the encoder starts; all others start as `initial`
    source_vocab_size: int
    source_tokenizer: str | None  # the text of a tokenizer.json; None: that of the target
    max_source: int | None  # the most tokens of a source; None where there is no end
    source_length: int | None  # M of a graph whose M is one number, to which sources are filled up; None: any
    start_tokens: tuple[int, ...]  # read before the first choice
    banned_tokens: tuple[int, ...]  # never chosen

    def problems(self, vocab_size: int, chained: Collection[str], most: int) -> list[str]:
        """What is wrong with values that come from a stranger.

        Args:
            vocab_size: of the target. chained: names of the states that a step changes. most: the largest vocabulary.
        """

        def tokens(value: Any, fewest: int) -> bool:
            return fewest <= len(value) <= MAX_SPECIAL and all(type(t) is int and 0 <= t < vocab_size for t in value)

        checks = {
            "start_states": set(self.start_states) <= set(chained)
            and len(set(self.start_states)) == len(self.start_states),
            "source_vocab_size": type(self.source_vocab_size) is int and 0 < self.source_vocab_size <= most,
            "source_tokenizer": self.source_tokenizer is None or isinstance(self.source_tokenizer, str),
            "max_source": self.max_source is None or (type(self.max_source) is int and self.max_source > 0),
            "source_length": self.source_length is None
            or (
                type(self.source_length) is type(self.max_source) is int
                and self.max_source <= self.source_length <= MAX_SOURCE_LENGTH
            ),
            "start_tokens": tokens(self.start_tokens, 1),
            "banned_tokens": tokens(self.banned_tokens, 0),
        }
        return [f"a bad value of {key}" for key, good in checks.items() if not good]

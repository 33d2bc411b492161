"""Metadata of translators: keys that describe the source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

MAX_SPECIAL = 1024  # start tokens or banned tokens
MAX_SOURCE_LENGTH = 1 << 20  # tokens


@dataclass(frozen=True)
class Source:
    """How a source is encoded and how its translation starts.

    Each field is the metadata key of the same name.
    """

    start_states: tuple[str, ...]  # states that the encoder initializes; others start as `initial`
    source_vocab_size: int
    source_tokenizer: str | None  # text of a tokenizer.json; None: the target's
    max_source: int | None  # maximum tokens of a source; None: no limit
    source_length: int | None  # fixed M, to which sources are padded; None: any length
    start_tokens: tuple[int, ...]  # read before the first choice
    banned_tokens: tuple[int, ...]  # never chosen

    def problems(self, vocab_size: int, chained: Collection[str], most: int) -> list[str]:
        """Describe invalid values.

        Args:
            vocab_size: target vocabulary.
            chained: names of the states that a step changes.
            most: largest source vocabulary.
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

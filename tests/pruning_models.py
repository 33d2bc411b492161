"""A text of random tokens for pruning tests."""

from __future__ import annotations

import small
from t2r_export.data.shards import Corpus


def corpus(vocabulary: int = small.VOCABULARY, length: int = 600) -> Corpus:
    tokens = small.ids(1, length, vocabulary=vocabulary)[0].int()
    return Corpus(tokens.numpy(), (length // 2, length))

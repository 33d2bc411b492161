"""Tokenized pairs for calibrating and checking quantized translators.

Targets are read with teacher forcing, in batches of similar length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from t2r_export.data.pairs import read_pairs
from t2r_runtime import Tokenizer
from t2r_runtime.contract.signature import SOURCE_IDS, SOURCE_LENGTHS, Signature
from t2r_runtime.errors import UserError

ROWS = 8  # batch size of graphs with a dynamic batch


@dataclass(frozen=True)
class TokenPair:
    """A tokenized pair."""

    source: list[int]
    target: list[int]  # with start and end tokens


@dataclass(frozen=True)
class PairGroup:
    """A batch of pairs."""

    sources: list[list[int]]
    targets: npt.NDArray[np.int64]  # (B, T), padded
    lengths: npt.NDArray[np.int64]  # (B,)

    def predicted(self, step: int, starts: int) -> npt.NDArray[np.bool_]:
        """Mask (B,) of rows in which the token after this step exists and is no start token."""
        return (step + 1 < self.lengths) & (step + 1 >= starts)


def read_token_pairs(path: Path, signature: Signature, most: int) -> list[TokenPair]:
    """Read at most `most` evenly spread pairs of a TSV file, without those beyond the model's positions.

    Raises:
        UserError: an unreadable file, a graph without a tokenizer, or no pair within the model's positions.
    """
    of_source, assured = Tokenizer.of_source(signature), signature.source
    assert assured is not None
    pairs, begin, end = read_pairs(path), list(assured.start_tokens), list(signature.eos_tokens[:1])
    chosen = [pairs[i * len(pairs) // most] for i in range(most)] if len(pairs) > most else pairs
    targets = Tokenizer.of(signature).encode_documents([target for _, target in chosen])
    made = [
        TokenPair(of_source.encode(source), [*begin, *target, *end])
        for (source, _), target in zip(chosen, targets, strict=True)
    ]
    longest, reach = assured.max_source, signature.reach
    fitting = [
        pair
        for pair in made
        if (longest is None or len(pair.source) <= longest) and (reach is None or len(pair.target) - 1 <= reach)
    ]
    if not fitting:
        raise UserError("pairs within the model's positions", f"only longer pairs in {path}", "name another file")
    return fitting


def side_by_side(pairs: Sequence[TokenPair], batch: int | None) -> Iterator[PairGroup]:
    """Batches of pairs of similar length; the last one is filled with pairs from the front.

    Args:
        batch: batch size of the graph; None (dynamic): at most ROWS.
    """
    rows = min(ROWS, len(pairs)) if batch is None else batch
    ordered = sorted(pairs, key=lambda pair: len(pair.target))
    for start in range(0, len(ordered), rows):
        group = ordered[start : start + rows]
        group += [ordered[i % len(ordered)] for i in range(rows - len(group))]
        lengths = np.array([len(pair.target) for pair in group])
        yield PairGroup([pair.source for pair in group], _padded([pair.target for pair in group]), lengths)


def source_feeds(sources: Sequence[Sequence[int]], length: int | None) -> dict[str, npt.NDArray[np.int64]]:
    """Inputs of an encoder graph with a fixed source `length`; None: the longest source."""
    return {SOURCE_IDS: _padded(sources, length), SOURCE_LENGTHS: np.array([len(source) for source in sources])}


def _padded(rows: Sequence[Sequence[int]], length: int | None = None) -> npt.NDArray[np.int64]:
    """Rows of tokens (N, length), zero-padded; None: the longest."""
    ids = np.zeros((len(rows), length or max(map(len, rows))), np.int64)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids

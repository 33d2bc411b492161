"""Pairs of a translator as its graphs read them: what a quantization is calibrated on, and checked with.

A target is read token by token from the start tokens on, whatever the graph itself would choose, beside others of about
its length.
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

ROWS = 8  # pairs side by side, of a graph of any batch size


@dataclass(frozen=True)
class TokenPair:
    """A pair as tokens: the source, and the target with what begins and ends it."""

    source: list[int]
    target: list[int]


@dataclass(frozen=True)
class PairGroup:
    """Pairs that are read side by side, a row each."""

    sources: list[list[int]]
    targets: npt.NDArray[np.int64]  # (B, T), filled up behind their lengths
    lengths: npt.NDArray[np.int64]  # (B,)

    def predicted(self, step: int, starts: int) -> npt.NDArray[np.bool_]:
        """Of each row whether its target has a token behind that of this step, which no start token is (B,)."""
        return (step + 1 < self.lengths) & (step + 1 >= starts)


def read_token_pairs(path: Path, signature: Signature, most: int) -> list[TokenPair]:
    """Pairs of a TSV file, at most so many and evenly spread; those that are too long for the model are left out.

    Raises:
        UserError: an unreadable file, a graph without a tokenizer, or no pair that the model has positions for.
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
        raise UserError("pairs that the model has positions for", f"longer ones in {path}", "name another file")
    return fitting


def side_by_side(pairs: Sequence[TokenPair], batch: int | None) -> Iterator[PairGroup]:
    """Groups of `batch` pairs of about one length; the last one is filled up with pairs from the front.

    Args:
        batch: the graph's, or None: ROWS, or all where there are fewer.
    """
    rows = min(ROWS, len(pairs)) if batch is None else batch
    ordered = sorted(pairs, key=lambda pair: len(pair.target))
    for start in range(0, len(ordered), rows):
        group = ordered[start : start + rows]
        group += [ordered[i % len(ordered)] for i in range(rows - len(group))]
        lengths = np.array([len(pair.target) for pair in group])
        targets = np.zeros((rows, lengths.max()), np.int64)
        for row, pair in zip(targets, group, strict=True):
            row[: len(pair.target)] = pair.target
        yield PairGroup([pair.source for pair in group], targets, lengths)


def source_feeds(sources: Sequence[Sequence[int]], length: int | None) -> dict[str, npt.NDArray[np.int64]]:
    """Inputs of an encoder graph, whose sources have `length` tokens, or None: those of the longest."""
    lengths = np.array([len(source) for source in sources])
    ids = np.zeros((len(lengths), length or lengths.max()), np.int64)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return {SOURCE_IDS: ids, SOURCE_LENGTHS: lengths}

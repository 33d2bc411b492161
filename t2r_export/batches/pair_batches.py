"""Tokenize and batch pairs: sources for the encoder, targets with start and end tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from t2r_export.batches.batch import Batch
from t2r_export.batches.ragged import ByLength, Ragged, by_length
from t2r_export.config.finetune import FinetuneConfig, Shares
from t2r_export.config.model import ModelConfig
from t2r_export.data.corpus import spread
from t2r_export.data.pairs import Pair, PairParts, read_pairs, split_shares
from t2r_export.data.shards import check_vocabulary
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

VALIDATION_BATCHES = 8  # maximum per validation during training


@dataclass(frozen=True)
class Tokenizers:
    """Contents of a translator's tokenizer.json files."""

    target: str | None
    source: str | None = None  # None: `target` for both sides

    def sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with special tokens.

        Raises:
            UserError: no tokenizer.
        """
        return self._open(self.source or self.target).encode_documents(texts, special_tokens=True)

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without special tokens. Raises as `sources`."""
        return self._open(self.target).encode_documents(texts)

    def _open(self, tokenizer: str | None) -> Tokenizer:
        if tokenizer is None:
            raise UserError(
                "a tokenizer in the checkpoint, to read pairs with",
                "a checkpoint without one",
                "import the model from a folder with a tokenizer",
            )
        return Tokenizer(tokenizer)


@dataclass(frozen=True)
class TokenPairs:
    """Tokenized pairs."""

    sources: Ragged
    targets: Ragged  # with start and end tokens
    starts: int  # number of start tokens

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, chosen: Tensor) -> Batch:
        """The batch of the pairs with these indices (B,)."""
        source, source_lengths = self.sources.padded(chosen)
        rows, lengths = self.targets.padded(chosen)
        columns = torch.arange(rows.shape[1] - 1)
        predicted = (columns >= self.starts - 1) & (columns < lengths[:, None] - 1)
        places = predicted.flatten().nonzero().squeeze(1)
        return Batch(rows[:, :-1], rows[:, 1:], None, source, source_lengths, places)

    def batches(self, most: int, tokens: int = 0) -> list[Batch]:
        """Batches of pairs of similar length.

        Args:
            most: maximum tokens per batch, padding included.
            tokens: choose pairs, evenly spread, that predict about this many tokens; 0: all pairs.
        """
        chosen = torch.arange(len(self))
        if tokens:
            predicted = int((self.targets.lengths - self.starts).sum())
            chosen = spread(chosen, max(1, len(self) * tokens // predicted))
        sources, targets = (side.lengths[chosen] for side in (self.sources, self.targets))
        return [self.batch(chosen[group]) for group in by_length(sources, targets, most)]


def tokenize_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers, model: ModelConfig, longest: int
) -> tuple[TokenPairs, int]:
    """Tokenize pairs, skipping those with more than `longest` tokens on a side or more than the model has positions.

    Returns:
        The pairs, and the number of skipped pairs.

    Raises:
        UserError: no tokenizer, a token outside the vocabulary, or no pair left.
    """
    assert model.encoder is not None
    texts = zip(*pairs, strict=True)
    sources, targets = tokenizers.sources(next(texts)), tokenizers.targets(next(texts))
    targets = [[*model.start_tokens, *target, *model.eos_tokens[:1]] for target in targets]
    most_source = min(longest, model.encoder.max_positions or longest)
    most_target = min(longest, model.max_positions or longest)
    kept = [n for n, s in enumerate(sources) if 0 < len(s) <= most_source and len(targets[n]) - 1 <= most_target]
    if not kept:
        expected = f"pairs of at most {most_source} tokens on the source's side and {most_target} on the target's"
        raise UserError(expected, f"{len(pairs)} longer ones", "pass shorter ones")
    sides = [Ragged.of([side[n] for n in kept]) for side in (sources, targets)]
    for side, size in zip(sides, (model.encoder.vocab_size or model.vocab_size, model.vocab_size), strict=True):
        check_vocabulary(side.tokens.numpy(), size)
    return TokenPairs(sides[0], sides[1], len(model.start_tokens)), len(pairs) - len(kept)


@dataclass(frozen=True)
class PairCorpus:
    """The tokenized parts of pairs."""

    train: TokenPairs
    valid: TokenPairs
    test: TokenPairs
    notes: tuple[str, ...] = ()  # on skipped pairs, one line each

    @property
    def sha256(self) -> str:
        """Identity of the corpus: hash of its parts."""
        sides = [side for part in (self.train, self.valid, self.test) for side in (part.sources, part.targets)]
        parts = [tensor.numpy().tobytes() for side in sides for tensor in (side.tokens, side.starts)]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_pair_corpus(
    paths: Sequence[Path],
    valid: Path | None,
    test: Path | None,
    tokenizers: Tokenizers,
    model: ModelConfig,
    shares: Shares,
    longest: int,
) -> PairCorpus:
    """Read files of pairs as a corpus for `model`.

    Args:
        paths: training files.
        valid, test: files of the other parts; None: split from the training files, by groups and `shares`.

    Raises:
        UserError: as `read_pairs`, `split_shares` and `tokenize_pairs`.
    """
    parts = _parts([pair for path in paths for pair in read_pairs(path)], valid, test, shares)
    found, notes = [], []
    for name in ("train", "valid", "test"):
        pairs = getattr(parts, name)
        tokens, left_out = tokenize_pairs(pairs, tokenizers, model, longest)
        found.append(tokens)
        if left_out:
            notes.append(f"{left_out} of {len(pairs)} pairs to {name} are left out, which are longer than {longest}")
    train, valid_part, test_part = found
    return PairCorpus(train, valid_part, test_part, tuple(notes))


def _parts(pairs: list[Pair], valid: Path | None, test: Path | None, shares: Shares) -> PairParts:
    if valid is not None and test is not None:
        return PairParts(pairs, read_pairs(valid), read_pairs(test))
    parts = split_shares(pairs, shares)
    if valid is not None:
        return PairParts(parts.train + parts.valid, read_pairs(valid), parts.test)
    return parts if test is None else PairParts(parts.train + parts.test, parts.valid, read_pairs(test))


class PairBatches:
    """`t2r_export.batches.batch.Batches` of a corpus of pairs."""

    def __init__(self, corpus: PairCorpus, config: FinetuneConfig) -> None:
        self._train, most = corpus.train, config.pair_tokens
        self._order = ByLength(corpus.train.sources.lengths, corpus.train.targets.lengths, most, config.seed)
        self.test = corpus.test.batches(most, config.report_tokens)
        valid = corpus.valid.batches(most)
        count = min(len(valid), VALIDATION_BATCHES, max(1, config.validation_tokens // most))
        chosen = torch.linspace(0, len(valid) - 1, count).round().int().tolist()
        self._valid = [valid[n] for n in chosen]

    @property
    def count(self) -> int:
        """Batches per epoch."""
        return self._order.count

    def __call__(self, step: int) -> Batch:
        return self._train.batch(self._order(step))

    def validation(self, shares: int) -> list[Batch]:
        return self._valid

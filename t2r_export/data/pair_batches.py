"""Batches of pairs: sources as the encoder reads them, targets between the tokens that begin and end a translation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from t2r_export.config.augment import read_augment
from t2r_export.config.finetune import FinetuneConfig, Shares
from t2r_export.config.model import ModelConfig
from t2r_export.data.augment import Augmenter
from t2r_export.data.batch import Batch
from t2r_export.data.corpus import spread
from t2r_export.data.pairs import Pair, PairParts, read_pairs, split_shares
from t2r_export.data.ragged import ByLength, Ragged, by_length
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

VALIDATION_BATCHES = 8  # of the valid part at most, in each validation during training


@dataclass(frozen=True)
class Tokenizers:
    """The texts of a translator's tokenizers.json."""

    target: str | None
    source: str | None = None  # None: one for both

    def sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers, with the special tokens that the sources' tokenizer puts around a text.

        Raises:
            UserError: there is no tokenizer.
        """
        return self._open(self.source or self.target).encode_documents(texts, special_tokens=True)

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers without any special tokens. Raises as `sources`."""
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
    """Pairs of one part as tokens."""

    sources: Ragged
    targets: Ragged  # with the tokens that begin and end a translation
    starts: int  # tokens that begin one
    texts: tuple[Pair, ...] = ()  # that they are the tokens of

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, chosen: Tensor) -> Batch:
        """The pairs of these numbers (B,)."""
        source, source_lengths = self.sources.padded(chosen)
        rows, lengths = self.targets.padded(chosen)
        columns = torch.arange(rows.shape[1] - 1)
        predicted = (columns >= self.starts - 1) & (columns < lengths[:, None] - 1)
        places = predicted.flatten().nonzero().squeeze(1)
        return Batch(rows[:, :-1], rows[:, 1:], None, source, source_lengths, places)

    def batches(self, most: int, tokens: int = 0) -> list[Batch]:
        """Pairs by length, in batches of at most `most` tokens with their padding: as many, evenly spread, as predict
        about so many `tokens`; 0 is all."""
        chosen = torch.arange(len(self))
        if tokens:
            predicted = int((self.targets.lengths - self.starts).sum())
            chosen = spread(chosen, max(1, len(self) * tokens // predicted))
        sources, targets = (side.lengths[chosen] for side in (self.sources, self.targets))
        return [self.batch(chosen[group]) for group in by_length(sources, targets, most)]


def tokenize_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers, model: ModelConfig, longest: int
) -> tuple[TokenPairs, int]:
    """Pairs as tokens, and how many were left out: those with more than `longest` tokens on a side, or than the model
    has positions.

    Raises:
        UserError: there is no tokenizer, a token outside the model's vocabulary, or nothing is left.
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
        raise UserError(expected, f"{len(pairs)} longer ones", "give shorter ones")
    made = TokenPairs(
        Ragged.of([sources[n] for n in kept]),
        Ragged.of([targets[n] for n in kept]),
        len(model.start_tokens),
        tuple(pairs[n] for n in kept),
    )
    for side, vocabulary in ((made.sources, model.encoder.vocab_size), (made.targets, None)):
        size = vocabulary or model.vocab_size
        if int(side.tokens.max()) >= size:
            raise UserError(
                f"tokens from 0 to {size - 1}, the model's vocabulary",
                f"token {int(side.tokens.max())}",
                "use the tokenizer that the model was trained with",
            )
    return made, len(pairs) - len(kept)


@dataclass(frozen=True)
class PairCorpus:
    """The parts of pairs as tokens, and what to say of them, a line each."""

    train: TokenPairs
    valid: TokenPairs
    test: TokenPairs
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """The identity of the corpus: the hash of its parts."""
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
    """Files of pairs as a corpus for `model`.

    Args:
        paths: to train on, one after the other.
        valid, test: the other parts; None: cut from the rest, by groups and `shares`.

    Raises:
        UserError: what `read_pairs`, `split_shares` and `tokenize_pairs` raise.
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
    """A corpus of pairs as a run reads it: `t2r_export.data.batch.Batches`."""

    def __init__(
        self,
        corpus: PairCorpus,
        config: FinetuneConfig,
        tokenize: Callable[[Sequence[Pair]], TokenPairs] | None = None,
    ) -> None:
        """`tokenize`: for augmented pairs; None: no augmentation."""
        self._train, self._most = corpus.train, config.pair_tokens
        self._tokenize, self._longest = tokenize, config.window
        if tokenize is not None:
            self._augment = Augmenter(corpus.train.texts, read_augment(config.augment), config.seed)
        self._order = ByLength(corpus.train.sources.lengths, corpus.train.targets.lengths, self._most, config.seed)
        self.test = corpus.test.batches(self._most, config.report_tokens)
        valid = corpus.valid.batches(self._most)
        count = min(len(valid), VALIDATION_BATCHES, max(1, config.validation_tokens // self._most))
        chosen = torch.linspace(0, len(valid) - 1, count).round().int().tolist()
        self._valid = [valid[n] for n in chosen]

    @property
    def count(self) -> int:
        """Batches of an epoch."""
        return self._order.count

    def __call__(self, step: int) -> Batch:
        chosen = self._order(step)
        plain = self._train.batch(chosen)
        if self._tokenize is None:
            return plain
        assert plain.source is not None
        room = self._longest // max(plain.source.shape[1], plain.ids.shape[1])
        texts = [self._train.texts[n] for n in chosen.tolist()]
        try:
            told = self._tokenize(self._augment(texts, step, max(1, room)))
        except UserError:  # all augmented pairs exceed the model's positions
            return plain
        return told.batch(torch.arange(len(told)))

    def validation(self, processes: int) -> list[Batch]:
        return self._valid

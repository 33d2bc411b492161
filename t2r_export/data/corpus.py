"""Training text: files become documents, documents become tokens, tokens become one packed stream cut into windows.

A text file is split into documents at every line that holds only the separator. Each document is stripped of
surrounding white space and tokenized with the checkpoint's own tokenizer. A document starts with the model's
beginning-of-text token if it has one; otherwise it ends with the first of its end-of-text tokens if it has any. The
documents are concatenated, and windows cross their borders: no padding, every token is trained on.

A .npy file holds token ids: (N,) is one stream, (N, length+1) one window per row. It is the format for models without a
tokenizer, and for sequences that must not be shifted or joined.

A corpus has three parts. `train` teaches, the tokenizer of a recipe too. `valid` chooses: validations during training,
the weights that a stage keeps, the mixers of `t2r choose`. `test` is what reports are measured on, and nothing
else reads it. The last documents are test and those before them valid, so that no part begins within a document of
another; where documents are too few for that, the text is cut at a character.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from t2r_export.config.finetune import SEPARATOR, Shares
from t2r_export.config.model import ModelConfig
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.text.texts import read_text

IntArray = npt.NDArray[Any]
USUAL_SHARES = Shares()


@dataclass(frozen=True)
class Corpus:
    """The parts of a text as tokens: int32, all streams (N,) or all rows (N, length+1)."""

    train: Tensor
    valid: Tensor
    test: Tensor

    def part(self, name: str) -> Tensor:
        """One of them by name, or `all` as one."""
        found: Tensor = torch.cat([self.train, self.valid, self.test]) if name == "all" else getattr(self, name)
        return found

    @property
    def row(self) -> int | None:
        """Tokens that every window predicts, where the corpus is rows."""
        return self.train.shape[1] - 1 if self.train.ndim == 2 else None

    @property
    def sha256(self) -> str:
        """The identity of the corpus: the hash of its parts."""
        parts = (part.numpy().tobytes() for part in (self.train, self.valid, self.test))
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_corpus(
    paths: Sequence[Path],
    tokenizer: str | None,
    model: ModelConfig,
    shares: Shares = USUAL_SHARES,
    separator: str = SEPARATOR,
) -> Corpus:
    """Files, one after the other, as a corpus for `model`. `tokenizer` is the text of its tokenizer.json.

    Raises:
        UserError: no file, an unreadable or empty one, text for a model without a tokenizer, a token outside the
            model's vocabulary, kinds of files mixed.
    """
    if not paths:
        raise UserError("at least one file to train on", "none", "name a text file")
    arrays = [path.suffix == ".npy" for path in paths]
    if all(arrays):
        corpus = _from_arrays([read_ids(path, model.vocab_size) for path in paths], shares)
    elif any(arrays):
        raise UserError("text files or .npy files", "both", "tokenize the text first, or leave the .npy files out")
    else:
        documents = [document for path in paths for document in read_documents(path, separator)]
        parts = (tokenize(part, tokenizer, model) for part in split_documents(documents, shares))
        ids = [np.array([token for document in part for token in document], np.int32) for part in parts]
        for part in ids:
            _check_vocabulary(part, model.vocab_size)
        corpus = Corpus(*map(torch.from_numpy, ids))
    return corpus


def split_documents(documents: Sequence[str], shares: Shares) -> list[list[str]]:
    """The documents of the parts train, valid and test: whole ones, or where they are too few, cut at a character."""
    first, second = borders(len(documents), shares)
    parts = [list(documents[:first]), list(documents[first:second]), list(documents[second:])]
    if all(parts):
        return parts
    first, second = borders(sum(map(len, documents)), shares)
    rest, test = _cut(documents, second)
    return [*_cut(rest, first), test]


def borders(count: int, shares: Shares) -> tuple[int, int]:
    """Where the valid part and the test part of `count` documents, tokens or rows begin."""
    return count - round(count * (shares.valid + shares.test)), count - round(count * shares.test)


def _cut(documents: Sequence[str], place: int) -> tuple[list[str], list[str]]:
    """What of the documents is before a character and what behind; nothing of it is empty."""
    before, behind = [], []
    for document in documents:
        before.append(document[: max(0, place)])
        behind.append(document[max(0, place) :])
        place -= len(document)
    return [piece for piece in before if piece], [piece for piece in behind if piece]


def read_documents(path: Path, separator: str = SEPARATOR) -> list[str]:
    """The documents of a UTF-8 text file, which lines equal to `separator` divide. Empty ones are left out."""
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    pieces = re.split(rf"^[ \t]*{re.escape(separator)}[ \t]*$", text, flags=re.MULTILINE) if separator else [text]
    documents = [piece.strip() for piece in pieces]
    documents = [document for document in documents if document]
    if not documents:
        raise UserError(f"text in {path}", "an empty file", "name a file with text in it")
    return documents


def tokenize(documents: Sequence[str], tokenizer: str | None, model: ModelConfig) -> list[list[int]]:
    """Token ids of each document, after the model's beginning-of-text token or before its end-of-text token."""
    if tokenizer is None:
        raise UserError(
            "a tokenizer in the checkpoint, to read text with",
            "a checkpoint without one",
            "give token ids as a .npy file, or import the model from a folder with a tokenizer.json",
        )
    encodings = Tokenizer(tokenizer).encode_documents(documents)
    before = [] if model.bos_token is None else [model.bos_token]
    after = [] if before else list(model.eos_tokens[:1])
    return [before + ids + after for ids in encodings]


def _from_arrays(arrays: list[IntArray], shares: Shares) -> Corpus:
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise UserError("arrays of one shape", f"rows of {sorted(shapes)}", "train on files of one kind at a time")
    whole = np.concatenate(arrays).astype(np.int32)
    return Corpus(*map(torch.from_numpy, np.split(whole, borders(len(whole), shares))))


def read_ids(path: Path, vocab_size: int) -> IntArray:
    """The token ids of a .npy file: integers (N,) or (N, length+1), all in the vocabulary.

    Raises:
        UserError: an unreadable file, or one with anything else in it.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about headers of older versions
            # mapped first: a header may claim any size, and only what is in the file can be mapped
            ids: IntArray = np.lib.format.open_memmap(existing_file(path, "an array of token ids"), mode="r")
    except UserError:
        raise
    except Exception as error:  # a header is Python's own literals, and fails in as many ways
        raise UserError(f"an array of token ids in {path}", printable(error), "write it with numpy.save") from error
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
        raise UserError(
            f"integers of shape (N,) or (N, length+1) in {path}",
            f"{ids.dtype} of shape {ids.shape}",
            "write token ids with numpy.save",
        )
    ids = np.array(ids)
    _check_vocabulary(ids, vocab_size)
    return ids


def _check_vocabulary(ids: IntArray, size: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise UserError(
            f"tokens from 0 to {size - 1}, the model's vocabulary",
            f"tokens from {ids.min()} to {ids.max()}",
            "use the tokenizer that the model was trained with",
        )


class Windows:
    """Batches of windows in a shuffled order that is a function of the seed and the step: nothing to save or restore.

    Every epoch has its own order and, in a stream, its own offset, so that a token does not always stand at the same
    place of its window. Rows are taken as they are.
    """

    def __init__(self, tokens: Tensor, length: int, batch: int, seed: int) -> None:
        """tokens (N,) or (N, length+1); a batch holds `batch` windows of length+1 tokens."""
        check_length(tokens, length, "training text")
        self.tokens, self.length, self.size, self.seed = tokens, length, batch, seed
        # one window less than fits leaves room for the offset
        self.count = len(tokens) if tokens.ndim == 2 else max(1, (len(tokens) - 1) // length - 1)
        self._epochs: dict[int, Tensor] = {}

    def __call__(self, step: int) -> Tensor:
        """The batch of a step, counted from 0: (batch, length+1) int64."""
        places = range(step * self.size, (step + 1) * self.size)
        starts = torch.stack([self._epoch(i // self.count)[i % self.count] for i in places])
        if self.tokens.ndim == 2:
            return self.tokens[starts].long()
        return self.tokens[starts[:, None] + torch.arange(self.length + 1)].long()

    def _epoch(self, epoch: int) -> Tensor:
        """Where the windows of an epoch start, in its order (count,)."""
        if epoch not in self._epochs:
            # a batch of a short text may span several epochs, a later batch never goes back
            self._epochs = {e: order for e, order in self._epochs.items() if e + 1 >= epoch}
            random = np.random.default_rng((self.seed, epoch))
            order = random.permutation(self.count)
            if self.tokens.ndim == 1:
                room = len(self.tokens) - 1 - self.count * self.length
                order = order * self.length + random.integers(0, room, endpoint=True)
            self._epochs[epoch] = torch.from_numpy(order)
        return self._epochs[epoch]


def held_out_windows(tokens: Tensor | IntArray, length: int) -> Tensor:
    """Every window of a text to measure on in order (N, length+1), int64: each token is predicted once, a short rest
    never. tokens (N,) or (N, length+1).
    """
    tokens = torch.as_tensor(tokens)
    check_length(tokens, length, "text to measure on")
    if tokens.ndim == 2:
        return tokens.long()
    count = (len(tokens) - 1) // length
    starts = torch.arange(count) * length
    return tokens[starts[:, None] + torch.arange(length + 1)].long()


def spread(windows: Tensor, count: int) -> Tensor:
    """At most `count` of the windows (N, T+1), evenly spread: the same ones every time. 0 is all."""
    if not count or len(windows) <= count:
        return windows
    return windows[torch.arange(count) * (len(windows) - 1) // max(1, count - 1)]


def windows_of(tokens: int, length: int) -> int:
    """How many windows of this length predict so many tokens at most, but one at least; 0, which is all, of 0."""
    return max(1, tokens // length) if tokens else 0


def parallel_sequences(tokens: IntArray, count: int, length: int) -> IntArray:
    """`count` runs of `length` tokens, evenly spread over a stream (N,), as (count, length); they may overlap."""
    starts = np.linspace(0, len(tokens) - length, count).astype(np.int64)
    rows: IntArray = tokens[starts[:, None] + np.arange(length)]
    return rows


def check_length(tokens: Tensor, length: int, what: str) -> None:
    """Raise UserError unless `tokens` hold at least one window, or rows of exactly its size."""
    if tokens.ndim == 2 and len(tokens) and tokens.shape[1] != length + 1:
        raise UserError(f"rows of length + 1 = {length + 1} tokens", f"{tokens.shape[1]}", "correct the length")
    if not len(tokens) or tokens.ndim == 1 and len(tokens) < length + 1:
        raise UserError(
            f"at least {length + 1} tokens of {what}",
            f"{len(tokens)}",
            "give more text, a shorter length, or another part to hold out",
        )

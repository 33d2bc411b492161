"""Training text: files become documents, documents become tokens, tokens become one packed stream cut into windows.

A text file is split into documents at every line that holds only the separator. Each document is stripped of
surrounding white space and tokenized with the checkpoint's own tokenizer. A document starts with the model's
beginning-of-text token if it has one; otherwise it ends with the first of its end-of-text tokens if it has any. The
documents are concatenated, and windows cross their borders: no padding, every token is trained on.

A .npy file holds token ids: (N,) is one stream, (N, length+1) one window per row. It is the format for models without a
tokenizer, and for sequences that must not be shifted or joined.

The last documents are held out for validation, so that a validation text is never the end of a training text.
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

from t2r_export.config.finetune import SEPARATOR
from t2r_export.config.model import ModelConfig
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file

IntArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens held out: int32, both streams (N,) or both rows (N, length+1)."""

    training: Tensor
    validation: Tensor

    @property
    def row(self) -> int | None:
        """Tokens that every window predicts, where the corpus is rows."""
        return self.training.shape[1] - 1 if self.training.ndim == 2 else None

    @property
    def sha256(self) -> str:
        """The identity of the corpus: the hash of its two parts."""
        parts = (part.numpy().tobytes() for part in (self.training, self.validation))
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_corpus(
    paths: Sequence[Path],
    tokenizer: str | None,
    model: ModelConfig,
    held_out: float = 0.1,
    separator: str = SEPARATOR,
) -> Corpus:
    """Files as a corpus for `model`. `tokenizer` is the text of its tokenizer.json.

    Raises:
        UserError: no file, an unreadable or empty one, text for a model without a tokenizer, a token outside the
            model's vocabulary, kinds of files mixed.
    """
    if not paths:
        raise UserError("at least one file to train on", "none", "name a text file")
    arrays = [path.suffix == ".npy" for path in paths]
    if all(arrays):
        corpus = _from_arrays([read_ids(path, model.vocab_size) for path in paths], held_out)
    elif any(arrays):
        raise UserError("text files or .npy files", "both", "tokenize the text first, or leave the .npy files out")
    else:
        documents = [document for path in paths for document in read_documents(path, separator)]
        corpus = _from_documents(tokenize(documents, tokenizer, model), held_out)
        for part in (corpus.training, corpus.validation):
            _check_vocabulary(part.numpy(), model.vocab_size)
    return corpus


def read_documents(path: Path, separator: str = SEPARATOR) -> list[str]:
    """The documents of a UTF-8 text file, which lines equal to `separator` divide. Empty ones are left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"to be able to read {path}", reason, "name an existing text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"UTF-8 text in {path}", str(error), "convert the file to UTF-8") from error
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


def _from_documents(documents: list[list[int]], held_out: float) -> Corpus:
    """The last documents are for validation, or the last tokens where there are too few documents."""
    kept = len(documents) - round(len(documents) * held_out)
    parts = [np.array([t for d in part for t in d], np.int32) for part in (documents[:kept], documents[kept:])]
    if not all(len(part) for part in parts):
        whole = np.concatenate(parts)
        kept = len(whole) - round(len(whole) * held_out)
        parts = [whole[:kept], whole[kept:]]
    return Corpus(*(torch.from_numpy(part) for part in parts))


def _from_arrays(arrays: list[IntArray], held_out: float) -> Corpus:
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise UserError("arrays of one shape", f"rows of {sorted(shapes)}", "train on files of one kind at a time")
    whole = np.concatenate(arrays).astype(np.int32)
    kept = len(whole) - round(len(whole) * held_out)
    return Corpus(torch.from_numpy(whole[:kept]), torch.from_numpy(whole[kept:]))


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
    """Every window of held-out tokens in order (N, length+1), int64: each token is predicted once, a short rest never.

    tokens (N,) or (N, length+1).
    """
    tokens = torch.as_tensor(tokens)
    check_length(tokens, length, "held-out text")
    if tokens.ndim == 2:
        return tokens.long()
    count = (len(tokens) - 1) // length
    starts = torch.arange(count) * length
    return tokens[starts[:, None] + torch.arange(length + 1)].long()


def spread(windows: Tensor, count: int) -> Tensor:
    """At most `count` of the windows (N, T+1), evenly spread: the same ones every time."""
    if len(windows) <= count:
        return windows
    return windows[torch.arange(count) * (len(windows) - 1) // max(1, count - 1)]


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

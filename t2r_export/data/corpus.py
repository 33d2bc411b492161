"""Training text: files → documents → tokens → one packed stream, cut into windows.

t2r_export.data.documents reads the files. Documents are tokenized with the checkpoint's tokenizer. Each begins with the
model's beginning-of-text token, or, without one, ends with its first end-of-text token. Documents are concatenated and
windows cross their borders, so there is no padding. The result is cached (t2r_export.data.shards).

A .npy file has token ids: a stream (N,), or one window per row (N, length+1). Use it for models without a tokenizer,
and for sequences that must not be shifted or joined.

A corpus has three parts (t2r_export.data.documents.parted). `train` is for training, also of tokenizers. `valid` is for
choices: validations, best weights, `t2r choose`. `test` is only for reports.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from t2r_export.config.finetune import FIELD, SEPARATOR, Shares
from t2r_export.data.documents import FIELDED, Texts, borders, parted
from t2r_export.data.encoding import MAX_PROCESSES, Encoder, encoded
from t2r_export.data.shards import Corpus, IntArray, Piece, cached
from t2r_export.files import sha256
from t2r_export.paths import text_files
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.session.tuning import usable_cores

USUAL_SHARES = Shares()
Rows = TypeVar("Rows", Tensor, IntArray)
SMALL = 1 << 22  # bytes of text up to which one process tokenizes
PIECE = 1 << 20  # tokens or rows of a .npy copied at once


class Vocabulary(Protocol):
    """The fields of a model's config or a graph's signature that determine how a text is read."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token(self) -> int | None: ...
    @property
    def eos_tokens(self) -> Sequence[int]: ...


def read_corpus(
    paths: Sequence[Path],
    tokenizer: str | None,
    model: Vocabulary,
    shares: Shares | None = USUAL_SHARES,
    separator: str = SEPARATOR,
    field: str = FIELD,
    processes: int | None = None,
    on_progress: Callable[[int], object] = lambda tokens: None,
) -> Corpus:
    """Read files and folders as one corpus for `model`.

    Args:
        tokenizer: contents of a tokenizer.json.
        shares: sizes of the parts, see t2r_export.data.documents.parted; token ids are always divided in order. None:
            everything is train.
        separator, field: see t2r_export.data.documents.Texts.
        processes: number of tokenizing processes; does not affect the result. None: chosen by size and processors.
        on_progress: called with the number of tokens, or rows, so far, if they are not in the cache.

    Raises:
        UserError: no file, an unreadable or empty file, text for a model without a tokenizer, a token outside the
            vocabulary, mixed kinds of files, a file that changes while it is read, or no space in the cache.
    """
    files = text_files(paths)
    _check_reading({path.suffix for path in files}, separator, field)
    arrays = [path.suffix == ".npy" for path in files]
    if any(arrays) and not all(arrays):
        raise UserError("text files or .npy files", "both", "tokenize the text first, or leave the .npy files out")
    content = _content(files)
    made_of: dict[str, Any] = {"files": content, "shares": shares and asdict(shares)}

    def unchanged(pieces: Iterator[Piece]) -> Iterator[Piece]:
        count = 0
        for piece in pieces:
            yield piece
            on_progress(count := count + len(piece[1]))
        if _content(files) != content:
            do = "wait until they are written, and run again"
            raise UserError("files that do not change while they are read", "changed files", do)

    if any(arrays):
        if shares is not None and shares.by == "hash":
            raise UserError("documents, to split by hash", "token ids", "split them in order")
        return cached(made_of, model.vocab_size, lambda: unchanged(_ids(files, shares)), paths)
    if tokenizer is None:
        raise UserError(
            "a tokenizer in the checkpoint, to read text with",
            "a checkpoint without one",
            "pass token ids as a .npy file, or import the model from a folder with a tokenizer.json",
        )
    before = () if model.bos_token is None else (model.bos_token,)
    encoder = Encoder(tokenizer, before, () if before else tuple(model.eos_tokens[:1]))
    made_of |= {"separator": separator, "field": field, "before": before, "after": encoder.after}
    made_of |= {"tokenizer": hashlib.sha256(tokenizer.encode()).hexdigest()}
    if processes is None:
        small = sum(path.stat().st_size for path in files) <= SMALL
        processes = 1 if small else min(MAX_PROCESSES, usable_cores() or os.cpu_count() or 1)
    documents = parted(Texts(files, separator, field), shares)
    return cached(made_of, model.vocab_size, lambda: unchanged(encoded(documents, encoder, processes)), paths)


def _check_reading(endings: set[str], separator: str, field: str) -> None:
    """Raise UserError for a separator or a field that none of the files has."""
    if field != FIELD and not endings & FIELDED:
        raise UserError("a .jsonl, .parquet or .arrow file with --split field", "other files", "leave the field out")
    if separator != SEPARATOR and not endings - FIELDED - {".npy"}:
        raise UserError("a text file with --split separator", "other files", "leave the separator out")


def _content(files: Sequence[Path]) -> list[list[str]]:
    """Format and hash of each file."""
    try:
        return [[path.suffix, sha256(path)] for path in files]
    except OSError as error:
        received = error.strerror or str(error)
        raise UserError(f"to be able to read {error.filename}", received, "name an existing file") from error


def _ids(files: Sequence[Path], shares: Shares | None) -> Iterator[Piece]:
    """Token ids of .npy files in pieces, with their parts."""
    arrays = [_mapped(path) for path in files]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise UserError("arrays of one shape", f"rows of {sorted(shapes)}", "train on files of one kind at a time")
    total, at = sum(map(len, arrays)), 0
    ends = (total, total, total) if shares is None else (*borders(total, shares), total)
    for array in arrays:
        start = 0
        while start < len(array):
            part = sum(at >= end for end in ends)
            stop = min(len(array), start + PIECE, start + ends[part] - at)
            yield part, _rows(array, start, stop), 0
            at, start = at + stop - start, stop


def _rows(array: np.memmap[Any, Any], start: int, stop: int) -> IntArray:
    """Some rows, read from the file if contiguous: access to mapped memory of a truncated file aborts the process."""
    if not array.flags.c_contiguous:
        return array[start:stop]
    shape, width = array.shape[1:], array.strides[0]
    count, offset = (stop - start) * width // array.itemsize, array.offset + start * width
    found: IntArray = np.fromfile(str(array.filename), array.dtype, count, offset=offset)
    return found[: len(found) * array.itemsize // width * width // array.itemsize].reshape(-1, *shape)


def _mapped(path: Path) -> np.memmap[Any, Any]:
    """Map the array of a .npy file: integers (N,) or (N, length+1).

    Raises:
        UserError: an unreadable file, or another array.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about headers of older versions
            # mapped: a header may claim any size, but mapping needs existing bytes
            ids = np.lib.format.open_memmap(existing_file(path, "an array of token ids"), mode="r")
    except UserError:
        raise
    except Exception as error:  # headers are Python literals, whose parser raises any exception
        raise UserError(f"an array of token ids in {path}", printable(error), "write it with numpy.save") from error
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
        raise UserError(
            f"integers of shape (N,) or (N, length+1) in {path}",
            f"{ids.dtype} of shape {ids.shape}",
            "write token ids with numpy.save",
        )
    return ids


class Windows:
    """Batches of shuffled windows, a function of seed and step: no state to save.

    Every epoch has another order and, for a stream, another offset, so that window borders vary.
    """

    def __init__(self, tokens: IntArray, length: int, batch: int, seed: int) -> None:
        """tokens (N,) or (N, length+1); a batch has `batch` windows of length+1 tokens."""
        check_length(tokens, length, "training text")
        self.tokens, self.length, self.size, self.seed = tokens, length, batch, seed
        # one window less than fits, for the offset
        self.count = len(tokens) if tokens.ndim == 2 else max(1, (len(tokens) - 1) // length - 1)
        self._epochs: dict[int, tuple[IntArray, int]] = {}

    def __call__(self, step: int) -> Tensor:
        """The batch of a step, counted from 0: (batch, length+1) int64."""
        places = range(step * self.size, (step + 1) * self.size)
        return _gather(self.tokens, np.array([self._start(*divmod(i, self.count)) for i in places]), self.length)

    def _start(self, epoch: int, number: int) -> int:
        """First token, or row, of a window of an epoch."""
        if epoch not in self._epochs:
            # a batch of a short text may span several epochs; later batches never go back
            self._epochs = {e: order for e, order in self._epochs.items() if e + 1 >= epoch}
            random = np.random.default_rng((self.seed, epoch))
            order = np.arange(
                self.count, dtype=np.uint32 if self.count <= 1 << 32 else np.int64
            )  # a large text has many windows
            random.shuffle(order)
            room = 0 if self.tokens.ndim == 2 else len(self.tokens) - 1 - self.count * self.length
            self._epochs[epoch] = order, int(random.integers(0, room, endpoint=True))
        order, offset = self._epochs[epoch]
        return int(order[number]) * (1 if self.tokens.ndim == 2 else self.length) + offset


def _gather(tokens: IntArray, starts: IntArray, length: int) -> Tensor:
    """Windows (B, length+1) int64 at `starts` of a stream, or the rows of these numbers."""
    places = starts if tokens.ndim == 2 else starts[:, None] + np.arange(length + 1)
    return torch.from_numpy(tokens[places].astype(np.int64))


def held_out_windows(tokens: Tensor | IntArray, length: int, *counts: int) -> Tensor:
    """Consecutive windows of a text (N, length+1) int64, without the incomplete last one; each token is predicted once.

    Args:
        tokens: (N,) or (N, length+1).
        counts: limits applied by `spread`, one after the other. Default: all windows.
    """
    tokens = np.asarray(tokens)
    check_length(tokens, length, "text to measure on")
    starts = np.arange(len(tokens)) if tokens.ndim == 2 else np.arange((len(tokens) - 1) // length) * length
    for count in counts:
        starts = spread(starts, count)
    return _gather(tokens, starts, length)


def spread(rows: Rows, count: int) -> Rows:
    """At most `count` rows, evenly spread and deterministic; 0: all."""
    if not count or len(rows) <= count:
        return rows
    return rows[np.arange(count) * (len(rows) - 1) // max(1, count - 1)]


def windows_of(tokens: int, length: int) -> int:
    """Number of windows that predict at most `tokens` tokens, at least one; 0 (all) for 0."""
    return max(1, tokens // length) if tokens else 0


def parallel_sequences(tokens: IntArray, count: int, length: int) -> IntArray:
    """`count` runs of `length` tokens, evenly spread over a stream (N,), as (count, length). Runs may overlap."""
    starts = np.linspace(0, len(tokens) - length, count).astype(np.int64)
    rows: IntArray = tokens[starts[:, None] + np.arange(length)]
    return rows


def check_length(tokens: Tensor | IntArray, length: int, what: str) -> None:
    """Raise UserError unless `tokens` have at least one window, or rows of its size."""
    if tokens.ndim == 2 and len(tokens) and tokens.shape[1] != length + 1:
        raise UserError(f"rows of length + 1 = {length + 1} tokens", f"{tokens.shape[1]}", "correct the length")
    if not len(tokens) or tokens.ndim == 1 and len(tokens) < length + 1:
        raise UserError(
            f"at least {length + 1} tokens of {what}",
            f"{len(tokens)}",
            "pass more text, a shorter length, or another part to hold out",
        )

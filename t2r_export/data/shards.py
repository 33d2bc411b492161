"""Token cache on disk: each corpus is tokenized once and memory-mapped.

A cache entry is a folder with the tokens of all parts and an index of their origin: file contents, tokenizer and split.
It is written under a temporary name and renamed, so incomplete entries are never read; index and tokens are compared
with their hashes when an entry is opened. The cache is $T2R_CACHE, or t2r in the user's cache folder; beyond
$T2R_CACHE_BYTES the least recently used entries are removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from t2r_export.config.finetune import PARTS
from t2r_runtime.errors import UserError
from t2r_runtime.files import locked, temporary_beside

IntArray = npt.NDArray[Any]
# part 0 train, 1 valid or 2 test; integers (N,) or (N, length+1); number of their documents
Piece = tuple[int, Any, int]
FORMAT = 2
CACHE_BYTES = 1 << 35
INDEX, TOKENS = "index.json", "tokens"
SEAL = "index_sha256"  # key of the index: hash of its other keys
PIECE = 1 << 20  # tokens hashed at once
MAX_INDEX = 1 << 24  # bytes


@dataclass(frozen=True)
class Entry:
    """A tokenized text in the cache."""

    folder: Path
    texts: tuple[str, ...]  # paths of files and folders at tokenization
    tokenizer: str | None  # SHA-256; None for token ids
    documents: tuple[int, ...]  # per part; 0 for token ids
    rows: tuple[int, ...]  # tokens, or rows of a .npy, per part
    bytes: int
    used: float  # seconds since 1970


@dataclass(frozen=True)
class Corpus:
    """A tokenized text: a stream (N,) or rows (N, length+1)."""

    tokens: IntArray  # of train, valid and test, in order; memory-mapped
    borders: tuple[int, int]  # start of valid and test
    sha256: str = ""  # identity: hash of the parts as int32
    documents: tuple[int, ...] = ()  # per part, for text
    folder: Path | None = None

    @property
    def train(self) -> IntArray:
        return self.tokens[: self.borders[0]]

    @property
    def valid(self) -> IntArray:
        return self.tokens[slice(*self.borders)]

    @property
    def test(self) -> IntArray:
        return self.tokens[self.borders[1] :]

    def part(self, name: str) -> IntArray:
        """A part by name; `all` for all tokens."""
        found: IntArray = self.tokens if name == "all" else getattr(self, name)
        return found

    @property
    def row(self) -> int | None:
        """Predicted tokens per row; None for a stream."""
        return self.tokens.shape[1] - 1 if self.tokens.ndim == 2 else None


def cache() -> Path:
    """Folder of the cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "t2r")
    return Path(os.environ.get("T2R_CACHE") or usual).expanduser()


def cached(
    made_of: Mapping[str, Any], vocab_size: int, tokens: Callable[[], Iterable[Piece]], texts: Sequence[Path] = ()
) -> Corpus:
    """The cached corpus of this origin; created if missing.

    Args:
        made_of: plain data that determines the tokens.
        tokens: generates the tokens in pieces.
        texts: paths of the text, for `entries` only.

    Raises:
        UserError: errors of `tokens`, a token outside the vocabulary, or no space in the cache.
    """
    most_bytes()  # raises before any work
    text = json.dumps({"format": FORMAT, **made_of, "vocab_size": vocab_size})
    made_of, folder = json.loads(text), cache() / hashlib.sha256(text.encode()).hexdigest()[:32]
    if (found := _opened(folder, made_of)) is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(folder.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with locked(folder, wait=True):
            if (found := _opened(folder, made_of)) is None:
                with temporary_beside(folder.with_name("corpus"), folder=True) as part:
                    _write(part, {**made_of, "texts": list(map(str, texts))}, vocab_size, tokens())
                    shutil.rmtree(folder, ignore_errors=True)
                    part.rename(folder)
                found = _opened(folder, made_of)
            assert found is not None
    except OSError as error:
        do = "make room there, as by t2r tokenize --remove KEY, or name another folder with T2R_CACHE"
        raise UserError(f"to be able to write tokens to {folder.parent}", error.strerror or str(error), do) from error
    _remove_oldest(folder)
    return found


def _opened(folder: Path, made_of: Mapping[str, Any]) -> Corpus | None:
    """The corpus in a folder; None if missing or incomplete.

    Raises:
        UserError: tokens of another corpus, or an index or tokens that were changed after they were written.
    """
    try:
        with (folder / INDEX).open("rb") as file:
            index = json.loads(file.read(MAX_INDEX))
        if (was := {name: index.get(name) for name in made_of}) != made_of:
            other = ", ".join(name for name in made_of if was[name] != made_of[name])
            raise UserError(f"tokens of this corpus in {folder}", f"those of another {other}", "remove that folder")
        if index[SEAL] != _seal(index):
            raise _changed(folder, "index")
        rows, shape = index["rows"], index["shape"]
        dtype = _dtype(index["vocab_size"])
        tokens = np.zeros((0, *shape), dtype)
        if sum(rows):
            tokens = np.asarray(np.memmap(folder / TOKENS, dtype, "r"))  # raises for a partial token
            tokens = tokens.reshape(sum(rows), *shape)
        borders = (rows[0], rows[0] + rows[1])
        if index["sha256"] != _identity(map(_hashed, np.split(tokens, borders))):
            raise _changed(folder, "tokens")
        with contextlib.suppress(OSError):  # read-only cache
            os.utime(folder / INDEX)
        return Corpus(tokens, borders, index["sha256"], tuple(index["documents"]), folder)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _changed(folder: Path, what: str) -> UserError:
    do = f"remove it with t2r tokenize --remove {folder.name}, and run again"
    return UserError(f"the {what} that t2r wrote to {folder}", f"changed {what}", do)


def _seal(index: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in index.items() if name != SEAL}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _hashed(part: IntArray) -> Any:
    """SHA-256 of a part's tokens as int32; at 4 bytes per token, it takes as long as that of an English text."""
    digest = hashlib.sha256()
    for at in range(0, len(part), PIECE):
        _add(digest, part[at : at + PIECE])
    return digest


def _add(digest: Any, tokens: IntArray) -> None:
    digest.update(np.ascontiguousarray(tokens, np.int32).data)


def _identity(parts: Iterable[Any]) -> str:
    return hashlib.sha256(b"".join(each.digest() for each in parts)).hexdigest()


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _write(folder: Path, origin: Mapping[str, Any], vocab_size: int, tokens: Iterable[Piece]) -> None:
    """Write the parts to separate files, then append them to one, and write the index."""
    hashes, rows, documents = [hashlib.sha256() for _ in PARTS], [0] * len(PARTS), [0] * len(PARTS)
    shape: tuple[int, ...] = ()
    with contextlib.ExitStack() as stack:
        files: list[BinaryIO] = [stack.enter_context((folder / name).open("w+b")) for name in (TOKENS, *PARTS[1:])]
        for part, given, count in tokens:
            ids = np.asarray(given)
            check_vocabulary(ids, vocab_size)
            files[part].write(np.ascontiguousarray(ids, _dtype(vocab_size)).data)
            _add(hashes[part], ids)
            rows[part], documents[part], shape = rows[part] + len(ids), documents[part] + count, ids.shape[1:]
        for file in files[1:]:
            file.seek(0)
            shutil.copyfileobj(file, files[0])
        files[0].flush()
        os.fsync(files[0].fileno())
    for name in PARTS[1:]:
        (folder / name).unlink()
    index = {**origin, "shape": shape, "rows": rows, "documents": documents, "sha256": _identity(hashes)}
    index[SEAL] = _seal(index)
    with (folder / INDEX).open("w", encoding="utf-8") as text:
        json.dump(index, text, indent=1)
        text.flush()
        os.fsync(text.fileno())


def check_vocabulary(ids: IntArray, size: int) -> None:
    """Raise UserError unless all tokens are from 0 to size - 1."""
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise UserError(
            f"tokens from 0 to {size - 1}, the model's vocabulary",
            f"tokens from {ids.min()} to {ids.max()}",
            "use the tokenizer that the model was trained with",
        )


def most_bytes() -> int:
    """Maximum bytes of the cache. Raises UserError unless T2R_CACHE_BYTES is a number."""
    text = os.environ.get("T2R_CACHE_BYTES") or str(CACHE_BYTES)
    if not text.isdecimal():
        raise UserError("a number of bytes in T2R_CACHE_BYTES", text, "correct it")
    return int(text)


def entries() -> list[Entry]:
    """The cache entries, most recently used first; those with a damaged index lack texts and sizes."""
    return [_described(*each) for each in sorted(_stored(), reverse=True)]


def _described(used: float, size: int, index: Path) -> Entry:
    try:
        data = json.loads(index.read_bytes()[:MAX_INDEX])
        counts = tuple(map(int, data["documents"])), tuple(map(int, data["rows"]))
        return Entry(index.parent, tuple(map(str, data.get("texts", ()))), data.get("tokenizer"), *counts, size, used)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Entry(index.parent, (), None, (), (), size, used)


def remove(keys: Sequence[str]) -> list[Path]:
    """Remove entries; processes that mapped one keep reading it.

    Args:
        keys: prefixes of folder names in the cache, or `all`.

    Returns:
        The folders.

    Raises:
        UserError: a prefix of no entry or of several; nothing is removed.
    """
    indices, chosen = [index for _, _, index in _stored()], set[Path]()
    for key in keys:
        found = [index for index in indices if key == "all" or key and index.parent.name.startswith(key)]
        if key != "all" and len(found) != 1:
            received = f"{key!r}, with which {len(found) or 'no'} keys begin" if key else "an empty text"
            raise UserError(f"a key of tokens in {cache()}", received, "t2r tokenize shows the keys")
        chosen.update(found)
    return [index.parent for index in sorted(chosen) if _removed(index)]


def _stored() -> Iterator[tuple[float, int, Path]]:
    """Time of last use, bytes of tokens, and index of each entry."""
    for index in cache().glob(f"[0-9a-f]*/{INDEX}"):
        with contextlib.suppress(OSError):  # removed by another process
            yield index.stat().st_mtime, (index.parent / TOKENS).stat().st_size, index


def _removed(index: Path) -> bool:
    """Remove an entry. Returns whether that succeeded."""
    with contextlib.suppress(OSError):
        index.unlink()  # first: an entry without index counts as missing
        shutil.rmtree(index.parent)
        return True
    return False


def _remove_oldest(kept: Path) -> None:
    """Remove entries other than `kept` until the cache fits; processes that mapped an entry keep reading it."""
    most, found = most_bytes(), sorted(_stored())
    total = sum(size for _, size, _ in found)
    for _, size, index in found:
        if total > most and index.parent != kept and _removed(index):
            total -= size

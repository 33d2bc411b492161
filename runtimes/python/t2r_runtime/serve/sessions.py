"""States of sessions: in memory, and in a folder as snapshots of the contract (t2r_runtime.session.snapshot).

A session has at most two states, each with the tokens read so far: after its last prompt except for one token, and
after its last answer. A prompt that begins with those tokens continues from that state. Tokens are kept as a hash, so
that the size of a session does not depend on its length.

A file is FOLDER/ab/SESSION.SLOT.COUNT.HASH.state, where SESSION is a hash of the session's name and of the graph: no
text of a request is part of a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import t2r_runtime.session.snapshot as snapshot
from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.text import Start
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import writable_folder

SLOTS = ("prompt", "end")
NAME = re.compile(
    r"(?P<session>[0-9a-f]{32})\.(?P<slot>prompt|end)\.(?P<count>[0-9]{1,19})\.(?P<hash>[0-9a-f]{32})\.state"
)
States = Mapping[str, NDArray[Any]]


class Kept(NamedTuple):
    """States after `tokens` tokens with the hash `digest`; states in a file have a path."""

    tokens: int
    digest: str
    states: States | None = None
    path: Path | None = None


class Sessions:
    """Keeps the states of sessions, and evicts the least recently used first. Thread-safe.

    Args:
        folder: folder of snapshots; None keeps states in memory only. It must be trusted.
        max_bytes: limit of the states in memory, and of those in the folder.
        largest: maximum size of a snapshot in bytes. Files that are larger, and links, are neither read nor counted: a
            sparse file of any size would evict all others.

    Raises:
        UserError: the folder cannot be created, or is not writable.
    """

    def __init__(self, folder: Path | None, max_bytes: int, largest: int) -> None:
        self._folder, self._max_bytes, self._largest = folder, max_bytes, largest
        self._lock = threading.Lock()  # of the states in memory
        self._disk = threading.RLock()  # of changes in the folder
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self.kept_bytes = 0  # in memory
        self._stored = 0  # in the folder
        if folder is not None:
            writable_folder(folder, f"as --keep {printable(folder)}", 0o700)
            self._stored = sum(about.st_size for _, about in self._files())

    def find(self, session: str, signature: Signature, ids: NDArray[np.int64]) -> Start | None:
        """The states after the longest known prefix of a prompt, at least one token shorter than it."""
        with self._lock:
            found = [kept for slot in SLOTS if (kept := self._kept.get((session, slot))) is not None]
        for kept in sorted([*found, *self._on_disk(session)], key=lambda kept: -kept.tokens):
            if 0 < kept.tokens < ids.size and kept.digest == digest_of(ids[: kept.tokens]):
                states = kept.states if kept.path is None else self._load(kept, signature)
                if states is not None:
                    self._touch(session)
                    return Start(states, kept.tokens, ids[: kept.tokens].tolist())
        return None

    def put(self, session: str, signature: Signature, slot: str, ids: NDArray[np.int64], states: States) -> None:
        """Keep the states after `ids`.

        Raises:
            UserError: the snapshot cannot be written. The states are kept in memory then.
        """
        kept = Kept(ids.size, digest_of(ids), _together(states))
        with self._lock:
            self._forget((session, slot))
            self._kept[session, slot] = kept
            self.kept_bytes += _size(states)
            while self.kept_bytes > self._max_bytes and self._kept:
                self._forget(next(iter(self._kept)))
        if self._folder is not None:
            self._store(session, signature, slot, kept)

    def _forget(self, key: tuple[str, str]) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None and gone.states is not None:
            self.kept_bytes -= _size(gone.states)

    def _touch(self, session: str) -> None:
        with self._lock:
            for slot in SLOTS:
                if (session, slot) in self._kept:
                    self._kept.move_to_end((session, slot))

    def _store(self, session: str, signature: Signature, slot: str, kept: Kept) -> None:
        assert self._folder is not None
        assert kept.states is not None
        before = [old.path for old in self._on_disk(session, slot)]
        path = self._folder / session[:2] / f"{session}.{slot}.{kept.tokens}.{kept.digest}.state"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        snapshot.save(path, signature, kept.states, kept.tokens)
        with self._disk:
            self._stored += self._size(path)
            for old in before:
                if old is not None and old != path:
                    self._delete(old)
            if self._stored > self._max_bytes:
                self._evict(path)

    def _evict(self, newest: Path) -> None:
        """Delete the least recently used files until they fit."""
        files = sorted(self._files(), key=lambda pair: pair[1].st_mtime_ns)
        self._stored = sum(about.st_size for _, about in files)
        for path, _ in files:
            if self._stored <= self._max_bytes:
                return
            if path != newest:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        with self._disk, contextlib.suppress(OSError):  # another process deleted it
            size = self._size(path)
            path.unlink()
            self._stored -= size

    def _on_disk(self, session: str, slot: str | None = None) -> list[Kept]:
        """The snapshots of a session, not loaded."""
        found = []
        for path, match in self._names(session[:2]):
            if match["session"] == session and slot in (None, match["slot"]) and self._about(path):
                found.append(Kept(int(match["count"]), match["hash"], path=path))
        return found

    def _load(self, kept: Kept, signature: Signature) -> States | None:
        """Load a snapshot; a damaged one is deleted."""
        assert kept.path is not None
        try:
            states, position, _ = snapshot.load(kept.path, signature)
        except UserError:
            self._delete(kept.path)
            return None
        with contextlib.suppress(OSError):
            os.utime(kept.path)  # mark as recently used
        return states if position == kept.tokens else None

    def _names(self, part: str) -> Iterator[tuple[Path, re.Match[str]]]:
        if self._folder is None:
            return
        folder = self._folder / part
        with contextlib.suppress(OSError):  # no session there yet
            for name in os.listdir(folder):
                if (match := NAME.fullmatch(name)) is not None and match["session"].startswith(part):
                    yield folder / name, match

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for number in range(256):
            for path, _ in self._names(f"{number:02x}"):
                if about := self._about(path):
                    yield path, about

    def _about(self, path: Path) -> os.stat_result | None:
        """None for a file that is no snapshot of this server's graphs."""
        with contextlib.suppress(OSError):  # another process deleted it
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_size <= self._largest:
                return about
        return None

    def _size(self, path: Path) -> int:
        about = self._about(path)
        return 0 if about is None else about.st_size


def session_key(graph: bytes, session: str) -> str:
    """Hash of a session's name and of its graph's hash."""
    return hashlib.sha256(graph + session.encode()).hexdigest()[:32]


def graph_key(path: Path, placement: Mapping[str, int]) -> bytes:
    """Hash of the graph's file and its providers; states depend on these and the tokens."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest() + " ".join(sorted(placement)).encode() + b"\0"


def digest_of(ids: NDArray[np.int64]) -> str:
    """The hash of tokens."""
    return hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()[:32]


def _together(states: States) -> States:
    """Copy states to one block of memory; blocks of equal size for all sessions avoid fragmentation."""
    block, at, found = np.empty(_size(states), np.uint8), 0, dict[str, NDArray[Any]]()
    for name, array in sorted(states.items(), key=lambda pair: -pair[1].itemsize):  # keeps arrays aligned
        found[name] = block[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        found[name][...] = array
        at += array.nbytes
    return found


def _size(states: States) -> int:
    return sum(array.nbytes for array in states.values())

"""States after prefixes of texts, in memory and in a folder, found by the hash of the tokens before them.

A request whose prompt begins with the tokens of kept states continues from there. Tokens are kept as a hash only, so
that the size of an entry does not depend on the length of its text.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import t2r_runtime.session.snapshot as snapshot
from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.text import Start
from t2r_runtime.files import unwritable
from t2r_runtime.serve.entries import Entries, Entry
from t2r_runtime.serve.folder import Folder, States, load

EVERY = 256  # tokens between the states of a prompt; doubled until there are at most MOST of them
MOST = 8
LAST = 3  # messages, beside the first, after which the states of a prompt are kept
APART = 16  # tokens between states of a prompt, at least


class Prefixes:
    """Keeps states after prefixes; the least valuable are evicted first (t2r_runtime.serve.entries). Thread-safe.

    Args:
        folder: folder of snapshots; None keeps states in memory only. It must be trusted.
        max_bytes: limit of the states in memory, and of those in the folder; 0 keeps none.
        largest: maximum size of a snapshot in bytes.

    Raises:
        UserError: as for Folder.
    """

    def __init__(self, folder: Path | None, max_bytes: int, largest: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._memory: Entries[States] = Entries(max_bytes)
        self._folder = None if folder is None else Folder(folder, max_bytes, largest)

    @property
    def kept_bytes(self) -> int:
        """Bytes of states in memory."""
        return self._memory.bytes

    def find(self, space: bytes, signature: Signature, ids: NDArray[np.int64]) -> Start | None:
        """The states after the longest known prefix of a prompt, at least one token shorter than it.

        Args:
            space: what the states depend on besides tokens (`space_of`).
        """
        with self._lock:
            if self._folder is not None:
                self._folder.refresh()
        for tokens, digest in reversed(self._known(space, ids[:-1])):
            states = self._states(signature, tokens, digest)
            if states is not None:
                return Start(states, tokens, ids[:tokens].tolist())
        return None

    def put(self, space: bytes, signature: Signature, ids: NDArray[np.int64], states: States) -> None:
        """Keep the states after `ids`.

        Raises:
            UserError: the snapshot cannot be written. The states are kept in memory then.
        """
        [digest] = digests_of(space, ids, [ids.size])
        with self._lock:
            old = self._memory.get(digest)
        self._remember(digest, ids.size, _together(states) if old is None else old.held)
        if self._folder is not None and self._folder.entries.get(digest) is None:
            path = self._folder.path(digest, ids.size)
            try:
                path.parent.mkdir(exist_ok=True, mode=0o700)
            except OSError as error:
                raise unwritable(path, error) from error
            snapshot.save(path, signature, states, ids.size)
            with self._lock:
                self._folder.wrote(path)
        self._known(space, ids)

    def _known(self, space: bytes, ids: NDArray[np.int64]) -> list[tuple[int, str]]:
        """Numbers of tokens and digests of all prefixes whose states may be kept, shortest first."""
        kept: list[Entries[Any]] = [self._memory, *([] if self._folder is None else [self._folder.entries])]
        with self._lock:
            lengths = sorted({length for entries in kept for length in entries.lengths if length <= ids.size})
        pairs = list(zip(lengths, digests_of(space, ids, lengths), strict=True))
        with self._lock:
            known = [pair for pair in pairs if any(entries.get(pair[1]) for entries in kept)]
            for entries in kept:
                entries.link([digest for _, digest in known])
        return known

    def _states(self, signature: Signature, tokens: int, digest: str) -> States | None:
        """Kept states, which are marked as used."""
        with self._lock:
            entry = self._memory.get(digest)
            file = None if self._folder is None else self._folder.entries.get(digest)
            if entry is not None:
                entry.used = time.time()
            if self._folder is not None:
                self._folder.touch(digest)
        if entry is not None or file is None:
            return None if entry is None else entry.held
        states = load(file, signature) if file.tokens == tokens else None
        if states is not None:
            self._remember(digest, tokens, _together(states))
        elif self._folder is not None:
            with self._lock:
                self._folder.delete(file)
        return states

    def _remember(self, digest: str, tokens: int, states: States) -> None:
        with self._lock:
            self._memory.add(Entry(digest, tokens, _size(states), time.time(), states))


def space_of(graph: bytes, session: str | None) -> bytes:
    """What states depend on besides tokens: the hash of a graph, and the session whose requests alone find them."""
    return graph if session is None else hashlib.sha256(graph + session.encode()).digest()


def adapted(graph: bytes, adapter: str | None) -> bytes:
    """The hash of a graph with an adapter; no session has it."""
    return graph if adapter is None else hashlib.sha256(b"adapter" + graph + adapter.encode()).digest()


def graph_key(path: Path, placement: Mapping[str, int], key: str | None) -> bytes:
    """Hash of the graph's file and its providers, on which states depend, and of the API key of their texts."""
    with open(path, "rb") as file:
        graph = hashlib.file_digest(file, "sha256")
    for part in (" ".join(sorted(placement)), key or ""):
        graph.update(b"\0" + part.encode())
    return graph.digest()


def digests_of(space: bytes, ids: NDArray[np.int64], lengths: Iterable[int]) -> list[str]:
    """The hash of each prefix of these lengths, which ascend."""
    data, hashed, before, found = np.ascontiguousarray(ids, "<i8"), hashlib.sha256(space), 0, []
    for length in lengths:
        hashed.update(data[before:length].tobytes())
        found.append(hashed.hexdigest()[:32])
        before = length
    return found


def places(ids: NDArray[np.int64], cached: int, ends: Collection[int]) -> list[int]:
    """Numbers of tokens of a prompt after which its states are kept, besides its end.

    These are the multiples of `EVERY`, doubled until the tokens to read have at most `MOST` of them, and the ends of
    the first message and of the `LAST` ones to read; without those closer than `APART` to the one before or to the end.

    Args:
        cached: number of tokens that are not read.
        ends: tokens that end a message.
    """
    every, last = EVERY, ids.size - 1
    while (last - cached) // every > MOST:
        every *= 2
    messages = (np.flatnonzero(np.isin(ids[cached : last - APART], list(ends))) + cached + 1).tolist()
    before, found = cached, []
    for place in sorted({*range(cached - cached % every + every, last, every), *messages[:1], *messages[-LAST:]}):
        if min(place - before, last - place) >= APART:
            found.append(place)
            before = place
    return found


def _together(states: States) -> States:
    """Copy states to one block of memory; blocks of equal size for all texts avoid fragmentation."""
    block, at, found = np.empty(_size(states), np.uint8), 0, dict[str, NDArray[Any]]()
    for name, array in sorted(states.items(), key=lambda pair: -pair[1].itemsize):  # keeps arrays aligned
        found[name] = block[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        found[name][...] = array
        at += array.nbytes
    return found


def _size(states: States) -> int:
    return sum(array.nbytes for array in states.values())

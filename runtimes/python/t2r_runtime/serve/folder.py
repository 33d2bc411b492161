"""States in a folder, as snapshots of the contract (t2r_runtime.session.snapshot), for later and for other servers.

A file is FOLDER/ab/DIGEST.TOKENS.state, where ab begins DIGEST, a hash of the tokens and of what states depend on
besides them: no text of a request is part of a path. The time of a file's last change is that of its last use.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import t2r_runtime.session.snapshot as snapshot
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import remove_abandoned, writable_folder
from t2r_runtime.serve.entries import Entries, Entry

NAME = re.compile(r"(?P<digest>[0-9a-f]{32})\.(?P<tokens>[0-9]{1,19})\.state")
RECENT = 1.0  # seconds in which a folder may change again without a later time of its last change
States = Mapping[str, NDArray[Any]]


class Folder:
    """The snapshots of a folder, which several servers may share. Its caller allows one thread at a time.

    Args:
        path: the folder. It must be trusted.
        max_bytes: limit of the files.
        largest: maximum size of a snapshot in bytes. Files that are larger, and links, are neither read nor counted: a
            sparse file of any size would evict all others.

    Attributes:
        entries: the known snapshots, with their paths.

    Raises:
        UserError: the folder cannot be created, or is not writable.
    """

    def __init__(self, path: Path, max_bytes: int, largest: int) -> None:
        writable_folder(path, f"as --keep {printable(path)}", 0o700)
        self._parts = [path / f"{number:02x}" for number in range(256)]
        self._largest = largest
        self._listed: dict[Path, float] = {}  # when a part was listed
        self._names: dict[Path, set[str]] = {part: set() for part in self._parts}
        self.entries: Entries[Path] = Entries(max_bytes)
        for part in self._parts:
            with contextlib.suppress(OSError):  # no state there yet
                remove_abandoned(part, ".")
        self.refresh()

    def refresh(self) -> None:
        """Learn which files other servers have written or deleted."""
        for part in self._parts:
            with contextlib.suppress(OSError):
                if os.stat(part).st_mtime > self._listed.get(part, 0.0) - RECENT:
                    self._listed[part] = time.time()
                    self._list(part)

    def _list(self, part: Path) -> None:
        names = {name for name in os.listdir(part) if NAME.fullmatch(name) and name.startswith(part.name)}
        for name in self._names[part] - names:
            self.entries.remove(name.partition(".")[0])
        for name in names - self._names[part]:
            self._add(part / name)
        self._names[part] = names

    def path(self, digest: str, tokens: int) -> Path:
        """The file of a digest."""
        return self._parts[int(digest[:2], 16)] / f"{digest}.{tokens}.state"

    def wrote(self, path: Path) -> None:
        """Count a file that was written, and delete the least valuable ones if there is no room."""
        self._names[path.parent].add(path.name)
        self._add(path)

    def _add(self, path: Path) -> None:
        match, about = NAME.fullmatch(path.name), self._about(path)
        if match is not None and about is not None:
            if not self.entries.room(about.st_size):
                self._learn_uses()
            entry = Entry(match["digest"], int(match["tokens"]), about.st_size, about.st_mtime, path)
            for gone in self.entries.add(entry):
                self._unlink(gone.held)

    def _learn_uses(self) -> None:
        """Read from the files when other servers used them."""
        for entry in self.entries:
            if (about := self._about(entry.held)) is not None:
                entry.used = about.st_mtime

    def _about(self, path: Path) -> os.stat_result | None:
        """None for a file that is no snapshot of this server's graphs."""
        with contextlib.suppress(OSError):  # another process deleted it
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_size <= self._largest:
                return about
        return None

    def delete(self, entry: Entry[Path]) -> None:
        """Delete a file."""
        self.entries.remove(entry.digest)
        self._unlink(entry.held)

    def _unlink(self, path: Path) -> None:
        self._names[path.parent].discard(path.name)
        with contextlib.suppress(OSError):  # another process deleted it
            path.unlink()

    def touch(self, digest: str) -> None:
        """Mark a file as used now."""
        if (entry := self.entries.get(digest)) is not None:
            entry.used = time.time()
            with contextlib.suppress(OSError):
                os.utime(entry.held)


def load(entry: Entry[Path], signature: Signature) -> States | None:
    """The states of a file; None if it is damaged, or not what its name says."""
    try:
        states, position, _ = snapshot.load(entry.held, signature)
    except UserError:
        return None
    return states if position == entry.tokens else None

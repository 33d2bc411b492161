"""Record of what each file of a build was made from; a file is reused only if the recipe would make the same again.

The record is a JSON file in the build's folder. An entry is written before its file: after a kill in between, an
existing file still matches its entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.plain import differences
from t2r_export.files import entries, sha256, write_bytes
from t2r_export.paths import RECORD
from t2r_export.version import __version__
from t2r_runtime.errors import UserError, printable, shown

Origin = Mapping[str, Any]  # plain data: sections of the recipe, hashes of inputs


class BuildRecord:
    """The record of a build's folder."""

    def __init__(self, folder: Path, anew: bool, on_progress: Callable[[str], object]) -> None:
        """`anew`: remove files with another origin instead of raising."""
        self.path, self.anew, self.on_progress = folder / RECORD, anew, on_progress
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        self.entries: dict[str, Any] = found if isinstance(found, dict) else {}

    def current(self, path: Path, origin: Origin, *others: Path) -> bool:
        """Whether `path` exists and has this origin. If not, the origin is recorded for the file to be made.

        Args:
            others: files written together with `path`, and removed with it.

        Raises:
            UserError: one of the files has another origin.
        """
        now, existing = self.check(path, origin, *others)
        if self.entries.get(path.name) == now:
            return path.exists()
        for file in existing:
            self.on_progress(f"removed, to be made again: {file}")
            file.unlink()
        self.entries[path.name] = now
        write_bytes(self.path, (json.dumps(self.entries, indent=1) + "\n").encode())
        return False

    def check(self, path: Path, origin: Origin, *others: Path) -> tuple[dict[str, Any], list[Path]]:
        """Raise as `current`, without changes. Returns the entry to record and the existing files."""
        now: dict[str, Any] = json.loads(json.dumps({**origin, "version of t2r-export": __version__}))
        before = self.entries.get(path.name)
        existing = [file for file in (path, *others) if file.exists()]
        if existing and before != now and not self.anew:
            raise UserError(
                f"{existing[0]} as this recipe makes it",
                f"one made of {_difference(before, now)}",
                "name another folder, or pass --anew to build it again",
            )
        return now, existing


def _difference(before: Any, now: Origin) -> str:
    """The values of the old entry that differ from the new one."""
    if not isinstance(before, Mapping):
        return f"something that {RECORD} does not say"
    words = []
    for name in sorted({*before, *now}):
        found = differences(before.get(name), now.get(name))
        if name.startswith("["):
            words += [f"{name} {key} {shown(old)}" for key, old, _ in found]
        elif any(found):
            words.append(f"another {name}")
    return printable(", ".join(words), 300)


def content(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    if not path.is_dir():
        return sha256(path)
    files = sorted(file for file in entries(path) if file.is_file())
    lines = [f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

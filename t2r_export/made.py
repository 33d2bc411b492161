"""What each file of a build was made of: a file is kept only where the recipe would make the same one again.

The record is a JSON file in the folder of the build. A file's entry is written before the file is made, so that a build
that is killed in between goes on: a file that stands there was made of what its entry says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2r_export.files import sha256, write_bytes
from t2r_export.version import __version__
from t2r_runtime.errors import UserError, printable, shown

RECORD = "made.json"
Of = Mapping[str, Any]  # plain data: a section of the recipe, or the hash of what was read


class Made:
    """The record of a build's folder."""

    def __init__(self, folder: Path, anew: bool, on_progress: Callable[[str], object]) -> None:
        """`anew`: remove what was made of something else, which is an error otherwise."""
        self.path, self.anew, self.on_progress = folder / RECORD, anew, on_progress
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        self.record: dict[str, Any] = found if isinstance(found, dict) else {}

    def keeps(self, path: Path, of: Of, *others: Path) -> bool:
        """Whether `path` stands there and was made of this. If not, it is recorded to be made of this now.

        Args:
            of: a value for each thing that it is made of. others: files that were made with it, and go with it.

        Raises:
            UserError: it, or one of the others, was made of something else.
        """
        now, there = self.check(path, of, *others)
        if self.record.get(path.name) == now:
            return path.exists()
        for file in there:
            self.on_progress(f"removed, to be made again: {file}")
            file.unlink()
        self.record[path.name] = now
        write_bytes(self.path, (json.dumps(self.record, indent=1) + "\n").encode())
        return False

    def check(self, path: Path, of: Of, *others: Path) -> tuple[dict[str, Any], list[Path]]:
        """`keeps`, which changes nothing: the entry as it is written now, and what stands there."""
        now: dict[str, Any] = json.loads(json.dumps({**of, "version of t2r-export": __version__}))
        before = self.record.get(path.name)
        there = [file for file in (path, *others) if file.exists()]
        if there and before != now and not self.anew:
            raise UserError(
                f"{there[0]} as this recipe makes it",
                f"one made of {_difference(before, now)}",
                "name another folder, or give --anew to make it again",
            )
        return now, there


def _difference(before: Any, now: Of) -> str:
    """What the old entry has that the new one has not."""
    if not isinstance(before, Mapping):
        return f"something that {RECORD} does not say"
    words = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and name.startswith("["):
            keys = (key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
            words += [f"{name} {key} {shown(old.get(key))}" for key in keys]
        else:
            words.append(f"another {name}")
    return printable(", ".join(words), 300)


def content(path: Path) -> str:
    """The SHA-256 of a file, or of all files in a folder with their names."""
    if not path.is_dir():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

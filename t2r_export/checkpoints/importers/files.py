"""The files of an untrusted folder: by plain name, inside the folder, and bounded in size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from t2r_export.files import sha256
from t2r_runtime.errors import UserError, no_json

HASH = re.compile("[0-9a-f]{64}")
CONFIG, GENERATION = "config.json", "generation_config.json"
ADAPTER, ADAPTER_WEIGHTS, PICKLED_ADAPTER = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
OF_PEFT = (ADAPTER, ADAPTER_WEIGHTS, PICKLED_ADAPTER)
SUBFOLDER = "additional_chat_templates"  # the only one with files that are read
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# bytes; above the largest of their kind, and small enough to read whole
LIMITS = {CONFIG: 1 << 20, GENERATION: 1 << 20, ADAPTER: 1 << 20, INDEX: 1 << 25}
DOWNLOAD = "download or save the folder again"
POINTER = b"version https://git-lfs"  # start of a Git LFS pointer, which replaces a large file


class Folder:
    """Reads files by name and records which were used."""

    format = "huggingface"
    remarks: tuple[str, ...] = ()  # for the user, one line each

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_name = CONFIG  # in messages
        self.used: dict[str, Path] = {}
        self._hashes: dict[str, str] | None = None

    def has(self, name: str) -> bool:
        """Whether the name exists; a broken link counts, so that `path` refuses it."""
        return (self.folder / name).is_symlink() or (self.folder / name).exists()

    def names(self, subfolder: str, ending: str) -> list[str]:
        """The names of a subfolder's files with this ending; none of one that is a link out of the folder."""
        place = self.folder / subfolder
        inside = place.is_dir() and place.resolve().is_relative_to(self.folder.resolve())
        return sorted(path.name for path in place.iterdir() if path.suffix == ending) if inside else []

    def path(self, name: str) -> Path:
        """The path of a regular file of the folder, or of its SUBFOLDER.

        Raises:
            UserError: `name` is not a plain file name, the file is missing, not regular or a Git LFS pointer, or a link
                leads out of the folder.
        """
        bare = name.removeprefix(f"{SUBFOLDER}/")
        if bare in ("", ".", "..") or any(c in bare for c in "/\\:") or not bare.isprintable():
            raise UserError(f"plain names of files in {self.folder}", ascii(name)[:200], DOWNLOAD)
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"the file {name} in {self.folder}", "no such file", DOWNLOAD)
        if not any(path.resolve().is_relative_to(place) for place in self._places()):
            raise UserError(
                f"{name} to be inside {self.folder}", "a link that leads out of it", "copy the file into the folder"
            )
        with _opened(path) as file:
            if file.read(len(POINTER)) == POINTER:
                received = "a pointer of Git LFS to it"
                raise UserError(f"the file {name} in {self.folder}", received, "run git lfs pull there")
        self.used[name] = path
        return path

    def _places(self) -> list[Path]:
        """Allowed locations: the folder, and in Hugging Face's cache the blobs that its snapshots link to."""
        here = self.folder.resolve()
        return [here, here.parent.parent / "blobs"] if here.parent.name == "snapshots" else [here]

    def text(self, name: str, limit: int) -> str:
        """A text of at most `limit` bytes."""
        try:
            return self.content(name, limit).decode()
        except UnicodeDecodeError as error:
            raise UserError(f"a text in UTF-8 in {self.folder / name}", str(error)[:200], DOWNLOAD) from error

    def content(self, name: str, limit: int) -> bytes:
        """The content of a file of at most `limit` bytes."""
        path = self.path(name)
        with _opened(path) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise UserError(f"at most {limit} bytes in {path}", "more", "check where this folder is from")
        return data

    def object(self, name: str, limit: int) -> dict[str, Any]:
        """A JSON object of at most `limit` bytes."""
        return parse_object(self.text(name, limit), str(self.folder / name))

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file that was used, by name.

        Raises:
            UserError: a file's hash differs from its name in Hugging Face's cache. Other files have no checksum: only a
                comparison of hashes detects a damaged weight that is still finite.
        """
        if self._hashes is None:
            self._hashes = {name: sha256(path) for name, path in sorted(self.used.items())}
            for name, digest in self._hashes.items():
                blob = self.used[name].resolve()
                if blob.parent.name == "blobs" and HASH.fullmatch(blob.name) and blob.name != digest:
                    expected = f"{name} in {self.folder} to have the SHA-256 that it is stored under"
                    raise UserError(expected, digest, DOWNLOAD)
        return self._hashes

    def sha256(self) -> str:
        """Hash of all used files: of the lines "<sha256>  <name>", as sha256sum prints them, sorted by name."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.hashes().items()))
        return hashlib.sha256(lines.encode()).hexdigest()


class Adapted(Folder):
    """A model's folder with the files of peft in another one."""

    def __init__(self, folder: Path, adapter: Path) -> None:
        super().__init__(folder)
        self.adapter = Folder(adapter)

    def has(self, name: str) -> bool:
        return self.adapter.has(name) if name in OF_PEFT else super().has(name)

    def path(self, name: str) -> Path:
        if name not in OF_PEFT:
            return super().path(name)
        self.used[name] = self.adapter.path(name)
        return self.used[name]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read bytes; raises UserError for any OSError."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), DOWNLOAD) from error


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object; raises UserError for other text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"JSON in {where}", no_json("a text", error), DOWNLOAD) from error
    if not isinstance(data, dict):
        raise UserError(f"a JSON object in {where}", f"a {type(data).__name__}", DOWNLOAD)
    return data

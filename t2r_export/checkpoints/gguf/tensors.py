"""The tensors of a GGUF file by the names of a Hugging Face folder, each read when it is needed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from t2r_export.checkpoints.gguf.architecture import EXPERT, Architecture, Change, Config
from t2r_export.checkpoints.gguf.header import DOWNLOAD, Place, unpacked
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import TABLES
from t2r_export.checkpoints.importers.stored import Stored
from t2r_runtime.errors import UserError

LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)")
MAX_EXPERTS = 1 << 10
ENDING = re.compile(r"(.+?)(\.(?:weight|bias))?")


class Tensors:
    """Tensors as a folder stores them: by full name, with the change that undoes llama.cpp's."""

    def __init__(self, data: Metadata, architecture: Architecture, config: Config) -> None:
        """Raises UserError for a shape that a change does not fit."""
        self.places: dict[str, tuple[Place, Change | None]] = {}
        changes = architecture.changes(config)
        for name, place in data.tensors.items():
            if name not in TABLES:
                self.places |= _named(name, place, architecture, changes)

    def stored(self) -> Iterator[dict[str, Stored]]:
        """Names and shapes, for `importers.folder.read`."""
        yield {
            name: Stored(place.path, name, _shape(place, change), place.dtype, opened=self.opened)
            for name, (place, change) in self.places.items()
        }

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[Callable[[str], Tensor]]:
        """A function that reads a tensor of this part of the file, as float32."""
        try:
            with path.open("rb") as file:

                def read(name: str) -> Tensor:
                    place, change = self.places[name]
                    tensor = torch.from_numpy(unpacked(file, place))
                    return tensor if change is None else change(tensor)

                yield read
        except OSError as error:
            raise UserError(f"to be able to read {path}", error.strerror or str(error), DOWNLOAD) from error


def _named(
    name: str, place: Place, architecture: Architecture, changes: Mapping[str, Change]
) -> dict[str, tuple[Place, Change | None]]:
    """The tensors of a folder that one in the file stands for; those of an unknown name keep it."""
    found = LAYER.fullmatch(name)
    number, inner = (found[1], found[2]) if found else ("", name)
    match = ENDING.fullmatch(inner)
    assert match is not None
    base, ending = match[1], match[2] or ""
    table = architecture.names if found else architecture.ends
    key = inner if inner in table else base
    if key not in table:
        return {name: (place, None)}
    full = table[key] if key == inner else table[key] + ending
    full = f"{architecture.layer.format(number)}.{full}" if found else full
    change = changes.get(inner, changes.get(base))
    if EXPERT not in full:
        return {full: (place, change)}
    if len(place.shape) != 3 or place.shape[0] > MAX_EXPERTS:
        expected = f"a matrix for each of at most {MAX_EXPERTS} experts as {name} in {place.path}"
        raise UserError(expected, f"the shape {list(place.shape)}", DOWNLOAD)
    return {full.replace(EXPERT, f"{expert}"): (place.part(expert), change) for expert in range(place.shape[0])}


def _shape(place: Place, change: Change | None) -> tuple[int, ...]:
    """The shape after the change, from a tensor without memory."""
    if change is None:
        return place.shape
    try:
        return tuple(change(torch.empty(place.shape, device="meta")).shape)
    except (RuntimeError, IndexError, ValueError) as error:
        expected = f"a shape of {place.name} in {place.path} that fits its keys"
        raise UserError(expected, f"{list(place.shape)}", DOWNLOAD) from error

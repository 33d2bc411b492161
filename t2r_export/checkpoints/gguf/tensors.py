"""The tensors of a GGUF file by the names of a Hugging Face folder, each read when it is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from t2r_export.checkpoints.gguf.architecture import EXPERT, PIECE, Architecture, Change, Config
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
        changes, unused = architecture.changes(config), TABLES | architecture.unused
        layers = data.layers if data.drafts else math.inf
        for name, place in data.tensors.items():
            found = LAYER.fullmatch(name)
            if name not in unused and (found is None or int(found[1]) < layers):
                self.places |= _named(name, place, architecture, changes)

    def stored(self) -> Iterator[dict[str, Stored]]:
        """Names and shapes, for `importers.folder.read`."""
        found: dict[str, dict[str, Stored]] = {}
        for name, (place, change) in self.places.items():
            whole, _, piece = name.partition(PIECE)
            one = Stored(place.path, name, _shape(place, change), place.dtype, opened=self.opened)
            found.setdefault(whole, {})[piece] = one
        yield {name: _joined(name, pieces) for name, pieces in found.items()}

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


def _joined(name: str, pieces: Mapping[str, Stored]) -> Stored:
    """A tensor of pieces below each other, by their numbers; those of experts are joined for each expert."""
    ordered = [pieces[key] for key in sorted(pieces, key=lambda key: [int(part) for part in key.split(".") if part])]
    first = ordered[0]
    if len(ordered) == 1:
        return first
    if any(not one.shape or one.shape[1:] != first.shape[1:] for one in ordered):
        shapes = " and ".join(sorted({f"{list(one.shape)}" for one in ordered}))
        raise UserError(f"rows of one length in all pieces of {name} in {first.path}", shapes, DOWNLOAD)
    rows = sum(one.shape[0] for one in ordered)
    experts = len({key.partition(".")[0] for key in pieces}) if "." in next(iter(pieces)) else 0
    shape = (experts, rows // experts) if experts else (rows,)
    return dataclasses.replace(first, shape=(*shape, *first.shape[1:]), pieces=tuple(ordered))


def _named(
    name: str, place: Place, architecture: Architecture, changes: Mapping[str, Change]
) -> dict[str, tuple[Place, Change | None]]:
    """The tensors of a folder, or pieces of them, that one in the file stands for; those of an unknown name keep it."""
    found = LAYER.fullmatch(name)
    number, inner = (found[1], found[2]) if found else ("", name)
    match = ENDING.fullmatch(inner)
    assert match is not None
    base, ending = match[1], match[2] or ""
    table = architecture.names if found else architecture.ends
    key = inner if inner in table else base
    if key not in table:
        return {name: (place, None)}
    targets = table[key]
    result: dict[str, tuple[Place, Change | None]] = {}
    for target in (targets,) if isinstance(targets, str) else targets:
        whole, mark, piece = target.partition(PIECE)
        full = whole + ("" if key == inner else ending) + mark + piece
        full = f"{architecture.layer.format(number)}.{full}" if found else full
        change = changes.get(target, changes.get(inner, changes.get(base)))
        result |= {name: (part, change) for name, part in _parts(full, name, place)}
    return result


def _parts(full: str, name: str, place: Place) -> Iterator[tuple[str, Place]]:
    """The tensor, or its matrix of each expert."""
    if EXPERT not in full:
        yield full, place
        return
    if len(place.shape) != 3 or place.shape[0] > MAX_EXPERTS:
        expected = f"a matrix for each of at most {MAX_EXPERTS} experts as {name} in {place.path}"
        raise UserError(expected, f"the shape {list(place.shape)}", DOWNLOAD)
    for expert in range(place.shape[0]):
        yield full.replace(EXPERT, f"{expert}"), place.part(expert)


def _shape(place: Place, change: Change | None) -> tuple[int, ...]:
    """The shape after the change, from a tensor without memory."""
    if change is None:
        return place.shape
    try:
        return tuple(change(torch.empty(place.shape, device="meta")).shape)
    except (RuntimeError, IndexError, ValueError) as error:
        expected = f"a shape of {place.name} in {place.path} that fits its keys"
        raise UserError(expected, f"{list(place.shape)}", DOWNLOAD) from error

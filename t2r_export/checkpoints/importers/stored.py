"""The stored tensors of a folder: listed from the headers of files, renamed, joined, and read after names and shapes
were checked."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.files import DOWNLOAD, INDEX, LIMITS, WEIGHTS, Folder
from t2r_export.checkpoints.weights import as_float32, compare, listed
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError, printable

NUMBER = re.compile(r"\.\d+\.")  # layer number


@dataclass(frozen=True)
class Delta:
    """A product of two stored matrices that is added to a tensor: scale B A, transposed if `turned`."""

    outer: Stored  # B
    inner: Stored  # A
    scale: float
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.outer.shape[0], self.inner.shape[1]
        return (columns, rows) if self.turned else (rows, columns)

    def value(self) -> Tensor:
        outer, inner = (dict(read_values({one.name: one}))[one.name] for one in (self.outer, self.inner))
        product = outer @ inner * self.scale
        return product.T if self.turned else product


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Callable[[str], Tensor]]:
    """A function that reads a tensor of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file.get_tensor
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


@dataclass(frozen=True)
class Stored:
    """The location of a tensor, from the header of its file, or the locations of its pieces."""

    path: Path
    name: str  # in the file
    shape: tuple[int, ...]
    dtype: str
    opened: Callable[[Path], AbstractContextManager[Callable[[str], Tensor]]] = opened
    pieces: tuple[Stored, ...] = ()
    delta: Delta | None = None  # of an adapter, see adapters.py

    @property
    def whole(self) -> tuple[Stored, ...]:
        return self.pieces or (self,)


def headers(files: Folder) -> Iterator[dict[str, Stored]]:
    """The tensors of each of the folder's safetensors, by their names in it."""
    shards = _shards(files)
    paths = {file: files.path(file) for file in shards}  # all names are checked before any file is opened
    for file, names in shards.items():
        stored = header(paths[file])
        if names is not None and names != set(stored):
            missing, unexpected = sorted(names - set(stored)), sorted(set(stored) - names)
            raise UserError(
                f"in {file} the tensors that {INDEX} lists",
                f"missing {listed(missing)}, unexpected {listed(unexpected)}",
                DOWNLOAD,
            )
        yield stored


def weight_tensors(
    stored: Iterable[dict[str, Stored]], importer: Importer, config: ModelConfig, where: str
) -> dict[str, Stored]:
    """Every tensor that is a weight, by its full name. Pieces of a tensor are not joined."""
    tensors: dict[str, Stored] = {}
    for name, tensor in (pair for one in stored for pair in one.items()):
        full = full_name(importer, name)
        if importer.buffers.fullmatch(full) or (importer.drafts and _number(full) >= len(config.layers)):
            continue
        if full in tensors:
            raise UserError(f"{listed([full])} once in {where}", f"also {listed([name])}", DOWNLOAD)
        tensors[full] = tensor
    return tensors


def full_name(importer: Importer, name: str) -> str:
    """The full name of a tensor of the family."""
    before = next((one for one in importer.wrapper if name.startswith(one)), importer.prefix)
    whole = name if name in importer.outside else importer.prefix + name.removeprefix(before)
    return _renamed(whole, importer.renamed)


def apart(name: str) -> tuple[str, str]:
    """A name with {} for the number of its layer, and the number."""
    number = NUMBER.search(name)
    return NUMBER.sub(".{}.", name, count=1), number[0].strip(".") if number else ""


def _number(name: str) -> int:
    """The layer number of a tensor; -1: none."""
    return int(apart(name)[1][:9] or -1)  # names may be of any length


def _renamed(name: str, names: Mapping[str, str]) -> str:
    pattern, number = apart(name)
    return names[pattern].replace("{}", number) if pattern in names else name


def joined(tensors: dict[str, Stored], joins: Mapping[str, tuple[str, ...]]) -> dict[str, Stored]:
    """Replace pieces by one tensor if all exist and fit, or if they are stacked in a tensor with one more axis."""
    for name, tensor in tensors.items():
        count, stacked = len(joins.get(apart(name)[0], ())), len(tensor.shape) == 3 and tensor.shape[0]
        if count and stacked and count % stacked == 0:
            tensors[name] = dataclasses.replace(tensor, shape=(stacked * tensor.shape[1], tensor.shape[2]))
    wholes = {pieces[0]: whole for whole, pieces in joins.items()}
    for first in list(tensors):
        pattern, number = apart(first)
        if pattern not in wholes:
            continue
        whole = wholes[pattern].replace("{}", number)
        names = [name.replace("{}", number) for name in joins[wholes[pattern]]]
        pieces = tuple(tensors[name] for name in names if name in tensors)
        fit = len(pieces) == len(names) and len({(len(piece.shape), piece.shape[1:]) for piece in pieces}) == 1
        if fit and pieces[0].shape and whole not in tensors:
            for name in names:
                del tensors[name]
            shape = (sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:])
            tensors[whole] = dataclasses.replace(pieces[0], shape=shape, pieces=pieces)
    return tensors


def with_repeated(tensors: dict[str, Stored], repeated: Mapping[str, str], where: str) -> dict[str, Stored]:
    """Add the tensors that are stored for another layer only."""
    found = dict(tensors)
    compare({}, {name: one.shape for name, one in tensors.items() if name.startswith(tuple(repeated))}, where)
    for before, of in repeated.items():
        for name, tensor in tensors.items():
            if name.startswith(of):
                found[before + name.removeprefix(of)] = tensor
    return found


def read_products(tensors: dict[str, Stored], sums: Mapping[str, tuple[str, str]], where: str) -> dict[str, Tensor]:
    """The products B A to add to weights. Removes each B and A from `tensors`, and names that repeat them."""
    pairs = {name for pair in sums.values() for name in pair}
    found = {name: tensors[name] for name in pairs if name in tensors}
    for whole, (outer, inner) in sums.items():
        if {whole, outer, inner} <= tensors.keys():
            shapes = {name: tensors[name].shape for name in (whole, outer, inner)}
            # absent dimensions are 0, so that tensors of other shapes are refused
            rows, columns, rank = (*shapes[whole], 0, 0)[:2] + (*shapes[inner], 0)[:1]
            compare({whole: (rows, columns), outer: (rows, rank), inner: (rank, columns)}, shapes, where)
        else:
            compare({name: (1,) for name in (whole, outer, inner) if name not in tensors}, {}, where)
    used = set(found.values())
    for name in [name for name, tensor in tensors.items() if tensor in used]:
        del tensors[name]
    values = dict(read_values(found))
    return {whole: values[outer] @ values[inner] for whole, (outer, inner) in sums.items()}


def _shards(files: Folder) -> dict[str, set[str] | None]:
    """Weight files and the tensors that each must have (None: any)."""
    if files.has(WEIGHTS):
        return {WEIGHTS: None}
    if not files.has(INDEX):
        others = sorted(path.name for path in files.folder.glob("*.safetensors"))
        received, do = "neither", "save the model in the safetensors format first"
        if others:
            received, do = f"neither, but {listed(others)}", DOWNLOAD
        raise UserError(f"{WEIGHTS}, or {INDEX} with its shards, in {files.folder}", received, do)
    index = Fields(files.object(INDEX, LIMITS[INDEX]), INDEX).object("weight_map")
    shards: dict[str, set[str] | None] = {}
    for name, file in index.items():
        if not isinstance(file, str):
            raise UserError(f"file names in the weight_map of {INDEX}", ascii(file)[:100], DOWNLOAD)
        names = shards.setdefault(file, set())
        assert names is not None
        names.add(name)
    return shards


def header(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by their names in it."""
    tensors = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- no mapping: it has keys and cannot be iterated
                part = file.get_slice(name)
                tensors[name] = Stored(path, name, tuple(part.get_shape()), part.get_dtype())
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    return tensors


def read_values(tensors: dict[str, Stored]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor's full name and float32 value, file by file; a tensor in pieces after its last piece."""
    by_path: dict[Path, list[tuple[str, Stored]]] = {}
    for name, stored in tensors.items():
        for piece in stored.whole:
            by_path.setdefault(piece.path, []).append((name, piece))
    read: dict[str, dict[Stored, Tensor]] = {}
    for path, pieces in by_path.items():
        with pieces[0][1].opened(path) as stored_value:
            for name, piece in pieces:
                value = as_float32(name, stored_value(piece.name))
                if piece.delta is not None:
                    value = as_float32(name, value + piece.delta.value())
                whole, found = tensors[name].whole, read.setdefault(name, {})
                found[piece] = value
                if len(found) == len(whole):
                    del read[name]
                    value = value if len(whole) == 1 else torch.cat([found[one] for one in whole])
                    yield name, value.reshape(tensors[name].shape)


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"whole safetensors in {path}", printable(error), DOWNLOAD)

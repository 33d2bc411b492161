"""A Hugging Face folder: config.json, weights as safetensors (one file, or shards with an index), tokenizer.json.

Nothing in the folder is trusted: texts are bounded, a shard is a plain file name inside the folder, names and shapes
are compared with the config by the headers alone, and only then are weights read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.chat import chat_template
from t2r_export.checkpoints.importers.files import DOWNLOAD, Folder
from t2r_export.checkpoints.importers.generation import with_generation
from t2r_export.checkpoints.importers.stored_positions import SIDES, absent_tables, are_sines, with_tables
from t2r_export.checkpoints.importers.tokenizers import tokenizers
from t2r_export.checkpoints.importers.unread import UNREAD
from t2r_export.checkpoints.weights import as_float32, compare, listed, weight_shapes
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError, did_you_mean, printable

CONFIG, GENERATION = "config.json", "generation_config.json"
ADAPTER = "adapter_config.json"  # of a folder of peft
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NUMBER = re.compile(r"\.\d+\.")  # of a layer
BEFORE = "use the model from before it was quantized"
# bytes; above the largest of their kind, and small enough to read whole
LIMITS = {CONFIG: 1 << 20, GENERATION: 1 << 20, INDEX: 1 << 25}


@dataclass(frozen=True)
class Imported:
    """What a folder gives: `weights` by our names, float32, complete and finite."""

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: str | None
    provenance: dict[str, Any]
    sha256: str  # of all files that were read, see Folder.sha256
    source_tokenizer: str | None  # of a translator's sources; None: one for both sides
    notes: tuple[str, ...]  # what a person should know of this import, a line each


def read(folder: Path, importers: Mapping[str, Importer]) -> Imported:
    """Read the folder with the importer that its config names.

    Raises:
        UserError: a file that is needed is missing, too large, damaged or outside the folder; an unknown family; a
            feature that the family's importer lacks; names or shapes that do not fit the config; weights not finite.
    """
    files = Folder(folder)
    if files.has(ADAPTER) and not files.has(CONFIG):
        raise UserError(f"a whole model in {folder}", "an adapter of peft", "save what its merge_and_unload() gives")
    data = files.object(CONFIG, LIMITS[CONFIG])
    family = data.get("model_type")
    if not isinstance(family, str) or family not in importers:
        expected = f"one of {', '.join(sorted(importers))}"
        why = f"it has {UNREAD[family]}: " if isinstance(family, str) and family in UNREAD else ""
        do = did_you_mean(family, importers, "use a model of those")
        raise Fields(data, CONFIG).wrong("model_type", expected, family, f"{why}use a model of those" if why else do)
    importer = importers[family]
    fields = importer.fields(data, CONFIG)
    if fields.get("quantization_config"):
        raise UserError(f"weights in floating point in {folder}", "a quantization_config", BEFORE)
    config = importer.config(fields)
    own = Fields(files.object(GENERATION, LIMITS[GENERATION]), GENERATION) if files.has(GENERATION) else None
    changes, notes = with_generation(config, fields, own)
    config = dataclasses.replace(config, **changes)
    tensors = _tensors(files, importer, config)
    config, tables = _stored_positions(config, fields, tensors) if importer.sines else (config, {})
    tensors = _repeated(tensors, importer.repeated(fields), str(folder))
    added = _products(tensors, importer.sums(fields), str(folder))
    weights = _weights(config, importer, tensors, folder, importer.factors(fields), added) | tables
    tokenizer, source_tokenizer, without = tokenizers(files, config)
    chat, passed_over = chat_template(files)
    notes += without + passed_over
    origin: dict[str, Any] = {
        "format": "huggingface",
        "name": _name(folder.resolve()),
        "model_type": fields.get("model_type"),
        "dtypes": sorted({piece.dtype for tensor in tensors.values() for piece in tensor.whole}),
        "trained_positions": _trained_positions(fields, config),
        "config_keys_not_used": fields.unread(),
        "files": files.hashes(),
    }
    if chat is not None:
        origin["chat_template"] = chat
    if fields.unread():
        notes.append(f"keys of {CONFIG} that are not used: {listed(fields.unread(), 50)}")
    provenance = {"origin": origin} if importer.provenance is None else _kept(importer.provenance(fields), chat)
    return Imported(config, weights, tokenizer, provenance, files.sha256(), source_tokenizer, tuple(notes))


def _kept(provenance: dict[str, Any], chat: dict[str, Any] | None) -> dict[str, Any]:
    """A model's own provenance with the chat template of the folder."""
    if chat is None:
        return provenance
    origin = provenance.get("origin")
    return {**provenance, "origin": {**(origin if isinstance(origin, dict) else {}), "chat_template": chat}}


def _name(folder: Path) -> str:
    """The folder's name; of a snapshot in the hub's cache the model's."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _trained_positions(fields: Fields, config: ModelConfig) -> int | None:
    """How far its training went: what a model without a table of positions can be asked for beyond it is untried."""
    key = "max_position_embeddings"
    said = fields.keys is not None and key in fields.keys.read and fields.data.get(key) is not None
    return fields.size(key) if said else config.max_positions


@dataclass(frozen=True)
class _Stored:
    """Where a tensor lies, as the header of its file says; one in pieces lies where they do."""

    path: Path
    name: str  # in the file
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[_Stored, ...] = ()

    @property
    def whole(self) -> tuple[_Stored, ...]:
        return self.pieces or (self,)


def _tensors(files: Folder, importer: Importer, config: ModelConfig) -> dict[str, _Stored]:
    """Every tensor of the folder that is a weight, by its full name."""
    tensors: dict[str, _Stored] = {}
    shards = _shards(files)
    paths = {file: files.path(file) for file in shards}  # all names are checked before any file is opened
    for file, names in shards.items():
        stored = _header(paths[file])
        if names is not None and names != set(stored):
            missing, unexpected = sorted(names - set(stored)), sorted(set(stored) - names)
            raise UserError(
                f"in {file} the tensors that {INDEX} lists",
                f"missing {listed(missing)}, unexpected {listed(unexpected)}",
                DOWNLOAD,
            )
        for name, tensor in stored.items():
            before = next((one for one in importer.wrapper if name.startswith(one)), importer.prefix)
            bare = name.removeprefix(before)
            full = _renamed(name if name in importer.outside else importer.prefix + bare, importer.renamed)
            if importer.buffers.fullmatch(full) or (importer.drafts and _number(full) >= len(config.layers)):
                continue
            if full in tensors:
                raise UserError(f"{listed([full])} once in {files.folder}", f"also {listed([name])}", DOWNLOAD)
            tensors[full] = tensor
    return _joined(tensors, importer.joined(config))


def _apart(name: str) -> tuple[str, str]:
    """A name with {} for the number of its layer, and the number."""
    number = NUMBER.search(name)
    return NUMBER.sub(".{}.", name, count=1), number[0].strip(".") if number else ""


def _number(name: str) -> int:
    """Of the layer of a tensor; -1: it is in none."""
    return int(_apart(name)[1][:9] or -1)  # names may be of any length


def _renamed(name: str, names: Mapping[str, str]) -> str:
    pattern, number = _apart(name)
    return names[pattern].replace("{}", number) if pattern in names else name


def _joined(tensors: dict[str, _Stored], joins: Mapping[str, tuple[str, ...]]) -> dict[str, _Stored]:
    """With one tensor in place of its pieces, where all of them are there and fit, or lie in one of an axis more."""
    for name, tensor in tensors.items():
        count, stacked = len(joins.get(_apart(name)[0], ())), len(tensor.shape) == 3 and tensor.shape[0]
        if count and stacked and count % stacked == 0:
            tensors[name] = dataclasses.replace(tensor, shape=(stacked * tensor.shape[1], tensor.shape[2]))
    wholes = {pieces[0]: whole for whole, pieces in joins.items()}
    for first in list(tensors):
        pattern, number = _apart(first)
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


def _repeated(tensors: dict[str, _Stored], repeated: Mapping[str, str], where: str) -> dict[str, _Stored]:
    """With the tensors that another layer stores, and only that one."""
    found = dict(tensors)
    compare({}, {name: one.shape for name, one in tensors.items() if name.startswith(tuple(repeated))}, where)
    for before, of in repeated.items():
        for name, tensor in tensors.items():
            if name.startswith(of):
                found[before + name.removeprefix(of)] = tensor
    return found


def _products(tensors: dict[str, _Stored], sums: Mapping[str, tuple[str, str]], where: str) -> dict[str, Tensor]:
    """What is added to weights, B A, out of `tensors`; so are those names of a B or an A that only repeat them."""
    pairs = {name for pair in sums.values() for name in pair}
    found = {name: tensors[name] for name in pairs if name in tensors}
    for whole, (outer, inner) in sums.items():
        if {whole, outer, inner} <= tensors.keys():
            (rows, columns), rank = tensors[whole].shape, tensors[inner].shape[0]
            compare(
                {outer: (rows, rank), inner: (rank, columns)},
                {name: tensors[name].shape for name in (outer, inner)},
                where,
            )
        else:
            compare({name: (1,) for name in (whole, outer, inner) if name not in tensors}, {}, where)
    used = set(found.values())
    for name in [name for name, tensor in tensors.items() if tensor in used]:
        del tensors[name]
    values = dict(_values(found))
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


def _header(path: Path) -> dict[str, _Stored]:
    tensors = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- no mapping: it has keys and cannot be iterated
                part = file.get_slice(name)
                tensors[name] = _Stored(path, name, tuple(part.get_shape()), part.get_dtype())
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    return tensors


def _weights(
    config: ModelConfig,
    importer: Importer,
    tensors: dict[str, _Stored],
    folder: Path,
    factors: Mapping[str, float | Tensor],
    added: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Our weights, cut out of the stored tensors once names and shapes are known to fit."""
    ours = weight_shapes(config)
    sources = importer.sources(config, ours)
    shapes = {name: source.shape(ours) for name, source in sources.items()}
    copies = {name: of for name, of in importer.copies(config).items() if name in tensors}  # they are compared below
    needed = {name: name in tensors or not source.optional for name, source in sources.items()}
    constant = {name: source.constant for name, source in sources.items() if source.constant is not None}
    expected = {name: shape for name, shape in shapes.items() if needed[name] and name not in constant}
    expected |= {name: shapes[of] for name, of in copies.items()}
    compare(expected, {name: tensor.shape for name, tensor in tensors.items()}, str(folder))
    absent = [
        (part, constant.get(name, 0.0)) for name in shapes.keys() - expected.keys() for part in sources[name].parts
    ]
    weights = {part: torch.full(ours[part], value) for part, value in absent}
    copied: dict[str, Tensor] = {}
    for name, tensor in _values(tensors):
        factor = factors.get(_apart(name)[0])
        if factor is not None:
            tensor = as_float32(name, tensor * factor)
        if name in added:
            tensor = as_float32(name, tensor + added[name])
        if name in copies:
            copied[name] = tensor
        else:
            weights |= sources[name].cut(tensor, ours)
    for name, tensor in copied.items():
        if not torch.equal(tensor, weights[sources[copies[name]].parts[0]]):
            raise UserError(
                f"{name} equal to {copies[name]}, since tie_word_embeddings is true or left out",
                "another tensor",
                f"set tie_word_embeddings to false in {CONFIG} if it is its own",
            )
    return weights


def _stored_positions(
    config: ModelConfig, fields: Fields, tensors: dict[str, _Stored]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model with the tables of positions that the folder stores, where they are not the sines that it computes.

    Returns:
        The config, and the tables that are not stored. Sines are taken out of `tensors`.
    """
    stored = {name: tensor for name, tensor in tensors.items() if name in SIDES}
    values = dict(_values(stored))
    if all(are_sines(config, values[name], tensor.dtype) for name, tensor in stored.items()):
        for name in stored:
            del tensors[name]
        return config, {}
    config = with_tables(config, fields.size("max_position_embeddings"))
    return config, absent_tables(config, stored)


def _values(tensors: dict[str, _Stored]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor's full name and its value in float32, file by file; one in pieces once it has them all."""
    by_path: dict[Path, list[tuple[str, _Stored]]] = {}
    for name, stored in tensors.items():
        for piece in stored.whole:
            by_path.setdefault(piece.path, []).append((name, piece))
    read: dict[str, dict[_Stored, Tensor]] = {}
    for path, pieces in by_path.items():
        try:
            with safe_open(path, framework="pt") as file:
                for name, piece in pieces:
                    value = as_float32(name, file.get_tensor(piece.name))
                    whole, found = tensors[name].whole, read.setdefault(name, {})
                    found[piece] = value
                    if len(found) == len(whole):
                        del read[name]
                        joined = value if len(whole) == 1 else torch.cat([found[one] for one in whole])
                        yield name, joined.reshape(tensors[name].shape)
        except (SafetensorError, OSError) as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"whole safetensors in {path}", printable(error), DOWNLOAD)

"""A Hugging Face folder: config.json, weights as safetensors (one file, or shards with an index), tokenizer.json.

The folder is untrusted: texts are bounded, a shard is a plain file name inside the folder, and weights are read only
after names and shapes in the headers were compared with the config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.importers.adapters import with_adapter
from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.chat import chat_template
from t2r_export.checkpoints.importers.contents import notes as notes_on
from t2r_export.checkpoints.importers.draft_heads import head_tensors, of_head
from t2r_export.checkpoints.importers.files import ADAPTER, CONFIG, GENERATION, LIMITS, Folder
from t2r_export.checkpoints.importers.generation import with_generation
from t2r_export.checkpoints.importers.packed import Packed, packing
from t2r_export.checkpoints.importers.special import SpecialTokens
from t2r_export.checkpoints.importers.stored import (
    Stored,
    apart,
    headers,
    joined,
    read_products,
    read_values,
    weight_tensors,
    with_repeated,
)
from t2r_export.checkpoints.importers.stored_positions import SIDES, absent_tables, are_sines, with_tables
from t2r_export.checkpoints.importers.tokenizers import tokenizers
from t2r_export.checkpoints.importers.unread import UNREAD
from t2r_export.checkpoints.weights import as_float32, compare, listed, weight_shapes
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Imported:
    """The imported model: `weights` by our names, float32, complete and finite."""

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: str | None
    provenance: dict[str, Any]
    sha256: str  # of all files that were read, see Folder.sha256
    source_tokenizer: str | None  # of a translator's sources; None: one for both sides
    notes: tuple[str, ...]  # for the user, one line each
    files: dict[str, str]  # SHA-256 of each file that was read, by name
    unmerged: Mapping[str, Tensor] = field(default_factory=dict)  # weights without their changes of low rank, by name


def read(
    files: Folder,
    importers: Mapping[str, Importer],
    stored: Callable[[], Iterable[dict[str, Stored]]] | None = None,
    draft_head: bool = False,
) -> Imported:
    """Read the folder with the importer that its config names.

    Args:
        stored: lists the tensors; None: those of the folder's safetensors.
        draft_head: read the model's draft head, as a model of its own.

    Raises:
        UserError: a file that is needed is missing, too large, damaged or outside the folder; an unknown family; a
            feature that the family's importer lacks; names or shapes that do not fit the config; weights not finite.
    """
    folder, where = files.folder, files.config_name
    if files.has(ADAPTER) and not files.has(CONFIG):
        raise UserError(f"a whole model in {folder}", "an adapter of peft", "save what its merge_and_unload() gives")
    data = files.object(CONFIG, LIMITS[CONFIG])
    family = data.get("model_type")
    if not isinstance(family, str) or family not in importers:
        expected = f"one of {', '.join(sorted(importers))}"
        why = f"it has {UNREAD[family]}: " if isinstance(family, str) and family in UNREAD else ""
        do = did_you_mean(family, importers, "use a model of those")
        raise Fields(data, where).wrong("model_type", expected, family, f"{why}use a model of those" if why else do)
    importer = of_head(importers[family], family) if draft_head else importers[family]
    fields = importer.fields(data, where)
    packed = packing(fields)
    config = importer.config(fields)
    own = Fields(files.object(GENERATION, LIMITS[GENERATION]), GENERATION) if files.has(GENERATION) else None
    changes, notes = with_generation(config, fields, own)
    config = dataclasses.replace(config, **changes)
    listing = headers(files) if stored is None else stored()
    if packed is not None:
        listing = Packed(packed, listing).stored()
    if draft_head:
        listing = head_tensors(list(listing), str(folder))
    tensors = weight_tensors(listing, importer, config, str(folder))
    config, tensors, merged = with_adapter(files, importer, config, fields, tensors)
    tensors = joined(tensors, importer.joined(config))
    config, tables = _stored_positions(config, fields, tensors) if importer.sines else (config, {})
    tensors = with_repeated(tensors, importer.repeated(fields), str(folder))
    added = read_products(tensors, importer.sums(fields), str(folder))
    weights = _weights(config, importer, tensors, folder, importer.factors(fields), added) | tables
    special = SpecialTokens(files)
    tokenizer, source_tokenizer, beyond = tokenizers(files, config, special)
    chat, passed_over = chat_template(files, special)
    notes += [*fields.notes(), *merged, *beyond, *passed_over, *notes_on(files)]
    origin: dict[str, Any] = {
        "format": files.format,
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
        notes.append(f"keys of {where} that are not used: {listed(fields.unread(), 50)}")
    provenance = {"origin": origin} if importer.provenance is None else _kept(importer.provenance(fields), chat)
    return Imported(
        config, weights, tokenizer, provenance, files.sha256(), source_tokenizer, tuple(notes), files.hashes()
    )


def _kept(provenance: dict[str, Any], chat: dict[str, Any] | None) -> dict[str, Any]:
    """A model's own provenance with the chat template of the folder."""
    if chat is None:
        return provenance
    origin = provenance.get("origin")
    return {**provenance, "origin": {**(origin if isinstance(origin, dict) else {}), "chat_template": chat}}


def _name(folder: Path) -> str:
    """The folder's name, or the model's for a snapshot in the hub's cache."""
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _trained_positions(fields: Fields, config: ModelConfig) -> int | None:
    """The training length in tokens; beyond it, a model without a table of positions is untested."""
    key = "max_position_embeddings"
    is_set = fields.keys is not None and key in fields.keys.read and fields.data.get(key) is not None
    return fields.size(key) if is_set else config.max_positions


def _weights(
    config: ModelConfig,
    importer: Importer,
    tensors: dict[str, Stored],
    folder: Path,
    factors: Mapping[str, float | Tensor],
    added: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Our weights, split from the stored tensors after names and shapes were checked."""
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
    for name, tensor in read_values(tensors):
        factor = factors.get(apart(name)[0])
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
    config: ModelConfig, fields: Fields, tensors: dict[str, Stored]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model with the folder's stored tables of positions, unless they equal the sines that it computes.

    Returns:
        The config, and the tables that are not stored. Sines are removed from `tensors`.
    """
    stored = {name: tensor for name, tensor in tensors.items() if name in SIDES}
    values = dict(read_values(stored))
    if all(are_sines(config, values[name], tensor.dtype) for name, tensor in stored.items()):
        for name in stored:
            del tensors[name]
        return config, {}
    config = with_tables(config, fields.size("max_position_embeddings"))
    return config, absent_tables(config, stored)

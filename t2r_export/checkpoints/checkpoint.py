"""Checkpoints: config, weights, tokenizer and provenance of a model in one file.

A model.pt is a torch archive of tensors and plain data, read with `weights_only=True`: an untrusted file runs no code.
`load` also opens Hugging Face folders, GGUF files, and adapters beside their base.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from t2r_export.checkpoints.archive import archive_sha256, read_archive, write_archive
from t2r_export.checkpoints.plain import check_plain, saved_config
from t2r_export.checkpoints.untrained import untrained
from t2r_export.checkpoints.weights import HEAD, as_float32, assemble, compare, listed, weight_shapes
from t2r_export.config.model import VERSION, ModelConfig
from t2r_export.files import sha256_beside
from t2r_export.model.transformer import Transformer
from t2r_export.paths import ADAPTERS, OPEN, check_base, existing_model
from t2r_runtime.contract.chat import is_chat_template
from t2r_runtime.contract.signature import untrained_note
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.outputs import GRAPHS

if TYPE_CHECKING:
    from t2r_export.checkpoints.adapter import Base, Written
    from t2r_export.checkpoints.importers import Imported

FORMAT = "t2r-checkpoint"
GGUF = ".gguf"
KEYS = ("format", "version", "config", "weights", "tokenizer", "provenance")
SOURCE_TOKENIZER = "source_tokenizer"  # optional key, for translators with a separate source tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its metadata."""

    config: ModelConfig
    model: Transformer  # float32, in eval mode, on the CPU
    tokenizer: str | None  # contents of a tokenizer.json
    provenance: dict[str, Any]  # plain JSON data: origin, conversion, training stages
    sha256: str  # of the file, or of the folder's files (see importers.files)
    source_tokenizer: str | None = None  # of a translator's sources; None: `tokenizer` for both sides
    notes: tuple[str, ...] = ()  # on the import, one line each
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each file that was read, by name
    # of an adapter: the weights without their changes of low rank, by name
    unmerged: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes, and one on untrained parts."""
        return (*self.notes, *untrained_note(len(untrained(self.provenance))))

    @property
    def chat_template(self) -> dict[str, Any] | None:
        """Chat template as in runtimes/contract/text.md, from the origin in the provenance."""
        origin = self.provenance.get("origin")
        found = origin.get("chat_template") if isinstance(origin, dict) else None
        return found if isinstance(found, dict) and is_chat_template(found) else None


def save(
    path: str | Path,
    model: Transformer,
    tokenizer: str | None,
    provenance: Mapping[str, Any],
    source_tokenizer: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a model.pt atomically. A tied head is stored once; equal arguments give equal bytes.

    Args:
        path: an existing file is replaced.
        model: a model on any device, of any precision.
        tokenizer: contents of a tokenizer.json, or None.
        provenance: plain JSON data.
        source_tokenizer: tokenizer of a translator's sources; None: `tokenizer` for both sides.
        dtype: storage dtype of the weights, float32 or float16; models compute in float32.

    Raises:
        UserError: the file cannot be written, a weight is not finite in that dtype, or `provenance` is not JSON data.
    """
    write_archive(path, _data(model, tokenizer, provenance, source_tokenizer, dtype))


def made(
    model: Transformer, tokenizer: str | None, provenance: Mapping[str, Any], source_tokenizer: str | None = None
) -> Checkpoint:
    """A checkpoint without a file; its SHA-256 is that of the file `save` would write.

    Raises:
        UserError: a weight is not finite, or `provenance` is not JSON data.
    """
    data = _data(model, tokenizer, provenance, source_tokenizer)
    return Checkpoint(model.config, model, tokenizer, data["provenance"], archive_sha256(data), source_tokenizer)


def save_adapter(path: str | Path, student: Checkpoint, base: Checkpoint) -> Written:
    """Write a .adapter atomically: what `student` adds to or changes in `base`; see t2r_export.checkpoints.adapter.

    `load` makes from it and the base the same model, except that tensors other than vectors are rounded: new ones, and
    what is added to those of the base, to the nearer of float16 and bfloat16.

    Raises:
        UserError: the file cannot be written, or a weight is not finite.
    """
    from t2r_export.checkpoints.adapter import write_adapter

    data = _data(student.model, student.tokenizer, student.provenance, student.source_tokenizer)
    kept = data["config"], data["provenance"], data["weights"]
    return write_adapter(Path(path), *kept, (student.tokenizer, student.source_tokenizer), _base(base))


def load(
    path: str | Path,
    digest: Callable[[], str] | None = None,
    base: str | Path | None = None,
    draft_head: bool = False,
) -> Checkpoint:
    """Load a model.pt, a Hugging Face folder, a .gguf, or an .adapter with its base.

    Args:
        digest: result of `t2r_export.files.sha256_beside` of the model.pt, if it was started earlier.
        base: for an .adapter only, the model that it was made of.
        draft_head: load the draft head of a folder, as a model of its own.

    Raises:
        UserError: a missing, other or damaged file, weights that do not fit the config, or non-finite weights; or no
            draft head.
    """
    try:
        path = existing_model(path)
        place = check_base(path, base)
        if draft_head:
            return _made(_draft_head(path))
        return _load(path, digest, None if place is None else load(place))
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), OPEN) from error


def _base(loaded: Checkpoint) -> Base:
    from t2r_export.checkpoints.adapter import Base

    return Base(loaded.files, loaded.model.state_dict(), (loaded.tokenizer, loaded.source_tokenizer))


def _imported(path: Path, base: Checkpoint | None) -> Imported:
    """A folder, a GGUF file or an adapter; the importers are loaded on use, since a model.pt needs none of them."""
    if path.suffix == ADAPTERS and not os.path.isdir(path):
        from t2r_export.checkpoints.adapter import read_adapter

        return read_adapter(path, None if base is None else _base(base))
    if os.path.isdir(path):
        from t2r_export.checkpoints.importers import read_folder

        return read_folder(path)
    from t2r_export.checkpoints.gguf import read_gguf

    return read_gguf(path)


def _draft_head(path: Path) -> Imported:
    if not os.path.isdir(path):
        expected = "a Hugging Face folder, to read its draft head"
        raise UserError(expected, f"{path}", "name the folder that the model was made of, or leave out --draft-head")
    from t2r_export.checkpoints.importers import read_folder

    return read_folder(path, draft_head=True)


def _made(found: Imported) -> Checkpoint:
    model = assemble(found.config, found.weights)
    rest = found.provenance, found.sha256, found.source_tokenizer, found.notes, found.files, found.unmerged
    return Checkpoint(found.config, model, found.tokenizer, *rest)


def _load(path: Path, digest: Callable[[], str] | None, base: Checkpoint | None) -> Checkpoint:
    if os.path.isdir(path) or path.suffix in (GGUF, ADAPTERS):
        return _made(_imported(path, base))
    data = _read(path)
    digest = digest or sha256_beside(path)
    config = saved_config(data["config"], path, OPEN)
    weights = data["weights"]
    compare(weight_shapes(config), {name: tensor.shape for name, tensor in weights.items()}, str(path))
    model = assemble(config, {name: as_float32(name, tensor) for name, tensor in weights.items()})
    files = {path.name: digest()}
    known = data["provenance"], files[path.name], data.get(SOURCE_TOKENIZER), (), files
    return Checkpoint(config, model, data["tokenizer"], *known)


def _data(
    model: Transformer,
    tokenizer: str | None,
    provenance: Mapping[str, Any],
    source_tokenizer: str | None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Contents of a file."""
    weights = {name: as_float32(name, tensor.detach().cpu()) for name, tensor in sorted(model.state_dict().items())}
    if dtype != torch.float32:
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        for name, tensor in weights.items():
            as_float32(name, tensor)  # raises for overflow
    if model.config.tied_head:
        del weights[HEAD]
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": _plain(model.config.to_dict(), "the config"),
        "weights": _unshared(weights),
        "tokenizer": tokenizer,
        "provenance": _plain(dict(provenance), "provenance"),
        **({} if source_tokenizer is None else {SOURCE_TOKENIZER: source_tokenizer}),
    }


def _plain(data: dict[str, Any], what: str) -> dict[str, Any]:
    """`data` after a JSON round trip: plain, with sorted keys and no shared objects.

    Shared objects would affect the bytes: pickle writes repeated objects as references.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(data, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"plain JSON data as {what}", printable(error), "keep to numbers, texts, lists and objects"
        ) from error
    return plain


def _unshared(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with separate storages; torch.save writes whole storages, and shared ones once."""
    seen: set[int] = set()
    for name, tensor in weights.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in seen:
            weights[name] = tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    return weights


def _read(path: Path) -> dict[str, Any]:
    """Read the file's dictionary and check its keys and types."""
    if not os.path.isfile(path):  # Path.is_file raises for long names
        raise UserError(f"a checkpoint at {path}", "no ordinary file" if os.path.exists(path) else "nothing", OPEN)
    if path.suffix in GRAPHS:
        raise UserError("a checkpoint", f"the exported graph {path}", "name the model that it was exported from")
    data = read_archive(path, "a checkpoint", OPEN, mapped=True)
    if not isinstance(data, dict):
        raise _another(path)
    for key, value in data.items():
        if key != "weights":
            check_plain(value, f"{shown(key)} in {path}")
    if data.get("format") != FORMAT:
        raise _another(path)
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise UserError(f"version {VERSION} of {path}", shown(version), "use the version of t2r that wrote it")
    _check_types(data, path)
    return data


def _another(path: Path) -> UserError:
    return UserError(f"a checkpoint of the format {FORMAT} in {path}", "something else", OPEN)


def _check_types(data: dict[str, Any], path: Path) -> None:
    if set(data) - {SOURCE_TOKENIZER} != set(KEYS):
        raise UserError(f"the keys {', '.join(KEYS)} in {path}", listed(sorted(map(str, data))), OPEN)
    weights = data["weights"]
    if not isinstance(weights, dict) or not all(isinstance(k, str) and _stored(v) for k, v in weights.items()):
        raise UserError(f"tensors by name as the weights in {path}", "something else", OPEN)
    # one storage under many names could need far more memory than the file's size
    claimed, size = sum(tensor.nbytes for tensor in weights.values()), path.stat().st_size
    if claimed > size:
        raise UserError(f"weights of at most the {size} bytes of {path}", f"{claimed} bytes", OPEN)
    for tokenizer in (data["tokenizer"], data.get(SOURCE_TOKENIZER)):
        if tokenizer is not None and not isinstance(tokenizer, str):
            raise UserError(f"a text as the tokenizer in {path}", type(tokenizer).__name__, OPEN)
    if not isinstance(data["provenance"], dict):
        raise UserError(f"an object as the provenance in {path}", type(data["provenance"]).__name__, OPEN)


def _stored(value: Any) -> bool:
    """Whether this is a plain, contiguous tensor with all values in the file."""
    plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided and not value.is_nested
    return plain and value.device.type == "cpu" and value.is_contiguous()

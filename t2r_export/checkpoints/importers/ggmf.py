"""Files of rwkv.cpp ("ggmf", version 101) with RWKV-7 or RWKV-5.2 in float32 or float16.

    int32: magic, version, vocabulary, width, layers, data type
    then each tensor, int32: dimensions, length of its name, data type, sizes (the last axis first); name; numbers

Files are untrusted: every size is compared with the rest of the file before it is used, and names and shapes with the
config before weights are read.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.folder import Imported
from t2r_export.checkpoints.importers.rwkv5 import DECAY, EAGLE, EAGLE_NAMES, EAGLE_TRANSFORMS, eagle_config
from t2r_export.checkpoints.importers.rwkv7 import KEYS, LOW_RANK, config_of
from t2r_export.checkpoints.importers.sources import ROW, Transform, named
from t2r_export.checkpoints.weights import as_float32, compare, weight_shapes
from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import MAX_LAYERS
from t2r_export.files import sha256
from t2r_runtime.errors import UserError, printable

VERSION = 101
DTYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
MARK = "blocks.0.att.x_rwkvag"  # only in RWKV-7
MAX_NAME, MAX_DIMENSIONS, MAX_TENSORS = 256, 4, 64 * MAX_LAYERS
HEAD_SIZE = 64  # of RWKV-7; the format's programs support no other
OPEN = "download or convert the file again"
BLOCK = "blocks.{}"
NAMES: dict[str, str] = {
    "embedding": "emb",
    "embedding_norm": "blocks.0.ln0",
    "norm": "ln_out",
    "head": "head",
    "rwkv7.norm": f"{BLOCK}.ln1",
    "channel_mix.norm": f"{BLOCK}.ln2",
    "rwkv7.r": f"{BLOCK}.att.receptance",
    "rwkv7.k": f"{BLOCK}.att.key",
    "rwkv7.v": f"{BLOCK}.att.value",
    "rwkv7.o": f"{BLOCK}.att.output",
    **{f"rwkv7.x_{part}": f"{BLOCK}.att.x_rwkvag" for part in "rwkvag"},
    **{f"rwkv7.{part}{n}.weight": f"{BLOCK}.att.{part}{n}" for part in LOW_RANK for n in (1, 2)},
    **{f"rwkv7.{name}": f"{BLOCK}.att.{name}" for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")},
    **{f"rwkv7.norm_{kind}": f"{BLOCK}.att.ln_x.{kind}" for kind in ("weight", "bias")},
    "channel_mix.x_k": f"{BLOCK}.ffn.x_k",
    "channel_mix.up": f"{BLOCK}.ffn.key",
    "channel_mix.down": f"{BLOCK}.ffn.value",
}
VECTOR = Transform(lambda x: x[0, 0], lambda x: x[None, None])  # (1, 1, N) is our (N)
TRANSFORMS = {
    **EAGLE_TRANSFORMS,
    **{f"{BLOCK}.att.{name}": VECTOR for name in ("w0", "a0", "v0", "k_k", "k_a")},
    f"{BLOCK}.att.x_rwkvag": Transform(lambda x: x[:, 0], lambda x: x[:, None]),
    f"{BLOCK}.ffn.x_k": ROW,
}


@dataclass(frozen=True)
class _Stored:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int  # offset in the file


def read_file(path: Path) -> Imported:
    """Read a file that begins with the format's magic.

    Raises:
        UserError: another version, quantized or damaged; another RWKV; weights that are not finite.
    """
    with path.open("rb") as file:
        header = _header(file, path)
        tensors: dict[str, _Stored] = {}
        while (tensor := _next(file, path, header["size"])) is not None:
            name, stored = tensor
            if name in tensors or len(tensors) == MAX_TENSORS:
                raise UserError(f"at most {MAX_TENSORS} tensors of different names in {path}", name, OPEN)
            tensors[name] = stored
        kind, config = _config(header, tensors, path)
        ours = weight_shapes(config)
        names = {**NAMES, **EAGLE_NAMES} if kind == "rwkv5" else NAMES
        sources = named(config, ours, names, TRANSFORMS)
        shapes = {name: source.shape(ours) for name, source in sources.items()}
        compare(shapes, {name: stored.shape for name, stored in tensors.items()}, str(path))
        weights: dict[str, Tensor] = {}
        for name, source in sources.items():
            weights |= source.cut(as_float32(name, _value(file, tensors[name])), ours)
    digest = sha256(path)
    origin = {
        "format": "ggmf",
        "name": path.name,
        "model_type": kind,
        "dtypes": sorted({stored.dtype.name for stored in tensors.values()}),
        "files": {path.name: digest},
    }
    return Imported(config, weights, None, {"origin": origin}, digest, None, ())


def _header(file: BinaryIO, path: Path) -> dict[str, int]:
    size = path.stat().st_size
    _, version, vocabulary, width, layers, kind = _integers(file, 6, path)
    if version != VERSION:
        raise UserError(f"version {VERSION} in {path}", str(version), "convert the model with a newer rwkv.cpp")
    _known(kind, path)
    return {"size": size, "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers}


def _next(file: BinaryIO, path: Path, size: int) -> tuple[str, _Stored] | None:
    """The next tensor's name and location; moves the file past it. None at the end."""
    if file.tell() == size:
        return None
    dimensions, length, kind = _integers(file, 3, path)
    if not 1 <= dimensions <= MAX_DIMENSIONS or not 1 <= length <= MAX_NAME:
        raise UserError(f"whole tensors in {path}", f"{dimensions} dimensions, a name of {length} bytes", OPEN)
    dtype, shape = _known(kind, path), _integers(file, dimensions, path)[::-1]
    name = printable(file.read(length).decode("utf-8", "replace"))
    start, left = file.tell(), size - file.tell()
    if min(shape) < 1 or math.prod(shape) * dtype.itemsize > left:
        raise UserError(f"{name} of at most the {left} bytes that are left of {path}", str(shape), OPEN)
    file.seek(start + math.prod(shape) * dtype.itemsize)
    return name, _Stored(shape, dtype, start)


def _integers(file: BinaryIO, count: int, path: Path) -> tuple[int, ...]:
    data = file.read(4 * count)
    if len(data) < 4 * count:
        raise UserError(f"whole tensors in {path}", "the end of the file", OPEN)
    return struct.unpack(f"<{count}i", data)


def _known(kind: int, path: Path) -> np.dtype[Any]:
    if kind not in DTYPES:
        raise UserError(f"float32 or float16 in {path}", f"data type {kind}", "use the file from before quantization")
    return DTYPES[kind]


def _config(header: dict[str, int], tensors: dict[str, _Stored], path: Path) -> tuple[str, ModelConfig]:
    """The version, identified by a tensor that only it has, and the model."""
    fields = Fields(_keys(header, tensors), path.name, KEYS)
    if MARK in tensors:
        return "rwkv7", config_of(fields)
    if EAGLE in tensors and DECAY in tensors:
        fields.layers("num_hidden_layers")
        return "rwkv5", eagle_config(fields.data, tensors[DECAY].shape[0])
    expected = f"RWKV-7, with {MARK}, or RWKV-5.2, with {EAGLE}, in {path}"
    raise UserError(expected, "another model", "these are the versions that can be read")


def _keys(header: dict[str, int], tensors: dict[str, _Stored]) -> dict[str, Any]:
    """The equivalent of a config.json, from the header and the shapes of the first layers."""

    def rows(name: str, otherwise: int = 1) -> int:
        return tensors[name].shape[0] if name in tensors else otherwise

    said = {key: value for key, value in header.items() if key != "size"}
    ranks = {"decay": "0.att.w1", "a": "0.att.a1", "gate": "0.att.g1", "v": "1.att.v1"}
    return {
        **said,
        **{f"{key}_low_rank_dim": rows(f"blocks.{name}") for key, name in ranks.items()},
        "head_dim": HEAD_SIZE,
        "intermediate_size": rows("blocks.0.ffn.key.weight"),
    }


def _value(file: BinaryIO, stored: _Stored) -> Tensor:
    file.seek(stored.start)
    data = np.fromfile(file, stored.dtype, math.prod(stored.shape))
    return torch.from_numpy(data.astype(stored.dtype.newbyteorder("="))).view(stored.shape)

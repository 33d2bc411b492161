"""Adapters: what a student adds to or changes in a named base model, in one small safetensors file.

A tensor of the file is named as the weight, or as the weight and a part of its change from the base's:

    NAME                the weight itself, if the base has none of this name and shape, or if it is a vector
    NAME.B, NAME.A      a change of low rank: W = W_base + B A      B (rows, rank), A (rank, columns)
    NAME.change         a change of full rank: W = W_base + change

Weights that the file does not name are the base's. Merged LoRA is a change of low rank, of the sum of its ranks, so its
factors are found again. Vectors are float32, other tensors float16 or bfloat16, whichever is nearer. The metadata has
one key, KEY: JSON of the student's config and provenance, and the SHA-256 of each of the base's files of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from t2r_export.checkpoints.importers import Imported
from t2r_export.checkpoints.importers.files import HASH, parse_object
from t2r_export.checkpoints.importers.stored import Stored, header, read_values
from t2r_export.checkpoints.plain import check_plain, saved_config
from t2r_export.checkpoints.weights import as_float32, compare, listed, weight_shapes
from t2r_export.files import sha256
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import replacing

KEY, VERSION = "t2r-adapter", 1
FIELDS = ("version", "config", "provenance", "base", "tokenizer", "source_tokenizer")
A, B, CHANGE = ".A", ".B", ".change"
WEIGHTS = (".pt", ".safetensors", ".gguf")  # endings of a base's files of weights
MAX_TEXT = 1 << 26  # bytes of the metadata
NOISE = 2.0**-23  # of the mean square root of a weight: float32's rounding when LoRA was merged, twice
FIRST_RANK = 16
AGAIN = "copy or download the adapter again"


@dataclass(frozen=True)
class Base:
    """The model that an adapter changes."""

    files: Mapping[str, str]  # SHA-256 of each file that was read, by name
    weights: Mapping[str, Tensor]  # float32, by name
    tokenizers: tuple[str | None, str | None]  # contents of the tokenizer.json, and that of a translator's sources

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file of weights, by name."""
        return {name: digest for name, digest in self.files.items() if name.endswith(WEIGHTS)}


@dataclass(frozen=True)
class Written:
    """How many weights an adapter has in each form."""

    whole: int
    low_rank: int
    full_rank: int
    largest_rank: int  # of the changes of low rank; 0: none


def write_adapter(
    path: Path,
    config: dict[str, Any],
    provenance: dict[str, Any],
    weights: Mapping[str, Tensor],
    tokenizers: tuple[str | None, str | None],
    base: Base,
) -> Written:
    """Write an adapter atomically; equal arguments give equal bytes.

    Args:
        config, provenance: plain JSON data of the student.
        weights: the student's, float32 on the CPU, without a tied head.
        tokenizers: as `Base.tokenizers`; a tokenizer equal to the base's is not stored.

    Raises:
        UserError: the file cannot be written, or a weight is not finite in 16 bits.
    """
    tensors: dict[str, Tensor] = {}
    ranks = []
    for name, weight in weights.items():
        before = base.weights.get(name)
        if before is None or before.shape != weight.shape or weight.ndim < 2:
            if before is None or not torch.equal(before, weight):
                tensors[name] = weight
        elif not torch.equal(before, weight):
            factors = low_rank(weight.double() - before.double(), weight)
            if factors is None:
                tensors[name + CHANGE] = weight - before
            else:
                tensors[name + B], tensors[name + A] = factors
                ranks.append(factors[1].shape[0])
    own = [None if mine == theirs else {"text": mine} for mine, theirs in zip(tokenizers, base.tokenizers, strict=True)]
    data = dict(zip(FIELDS, (VERSION, config, provenance, base.hashes(), *own), strict=True))
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    stored = {name: _short(name, tensor) for name, tensor in tensors.items()}
    with replacing(path) as part:
        try:
            save_file(stored, part, {KEY: text})
        except SafetensorError as error:  # whatever the system says: a full disk
            raise OSError(str(error)) from error
    full = sum(name.endswith(CHANGE) for name in stored)
    return Written(len(stored) - full - 2 * len(ranks), len(ranks), full, max(ranks, default=0))


def low_rank(change: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """B (rows, rank) and A (rank, columns), float32, with B A = change up to the rounding of `weight` to float32.

    By a random sketch (Halko et al. 2011, arXiv 0909.4061, algorithm 4.1) of a rank that doubles.

    Args:
        change: (rows, columns), float64.
        weight: the changed weight, for the size of its rounding.

    Returns:
        None if the change is no matrix, or its factors have no fewer elements than it.
    """
    if change.ndim != 2:
        return None
    rows, columns = change.shape
    noise = NOISE * float(weight.double().square().mean().sqrt())
    generator, most = torch.Generator().manual_seed(0), rows * columns // (rows + columns)
    sketch = FIRST_RANK
    while True:
        sketch = min(sketch, rows, columns)
        basis = torch.linalg.qr(change @ torch.randn(columns, sketch, generator=generator, dtype=change.dtype))[0]
        inner = basis.T @ change
        if float((change - basis @ inner).square().mean().sqrt()) <= noise:
            break
        if sketch >= most or sketch == min(rows, columns):
            return None
        sketch *= 2
    left, sizes, right = torch.linalg.svd(inner, full_matrices=False)
    rank = max(1, int((sizes > noise * (rows**0.5 + columns**0.5)).sum()))
    if rank * (rows + columns) >= rows * columns:
        return None
    root = sizes[:rank].sqrt()
    return (basis @ left[:, :rank] * root).float(), (root[:, None] * right[:rank]).float()


def _short(name: str, tensor: Tensor) -> Tensor:
    """A vector as float32; another tensor in that form of 16 bits whose largest error is smaller."""
    as_float32(name, tensor)  # raises for NaN and infinity
    if tensor.ndim < 2:
        return tensor.contiguous()
    short = [tensor.to(dtype).contiguous() for dtype in (torch.float16, torch.bfloat16)]
    found = min(short, key=lambda one: float((one.float() - tensor).abs().nan_to_num(float("inf")).max()))
    as_float32(name, found)
    return found


def read_adapter(path: Path, base: Base | None) -> Imported:
    """Read an adapter, and make the student of it and of its base.

    Raises:
        UserError: another or a damaged file, no base or another one than the adapter's, tensors that do not fit config
            and base, or weights that are not finite.
    """
    data = _metadata(path)
    hashes: dict[str, str] = data["base"]
    if base is None:
        do = f"pass --base FILE, or first write a model.pt: t2r save {path} OUT.pt --as t2r --base FILE"
        raise UserError(f"the base of {path}: {_shown(hashes, ())}", "none", do)
    if sorted(hashes.values()) != sorted(base.hashes().values()):
        received = _shown(base.hashes(), hashes.values())
        raise UserError(f"the base of {path}: {_shown(hashes, base.hashes().values())}", received, "pass that base")
    config = saved_config(data["config"], path, AGAIN)
    stored = header(path)
    weights = _weights(path, weight_shapes(config), stored, base.weights)
    unmerged = {name: base.weights[name] for name in weights if name + A in stored}
    tokenizers = [
        own["text"] if own else theirs
        for own, theirs in zip((data["tokenizer"], data["source_tokenizer"]), base.tokenizers, strict=True)
    ]
    digest = sha256(path)
    files = {path.name: digest, **base.files}
    known = tokenizers[0], data["provenance"], digest, tokenizers[1], (), files
    return Imported(config, weights, *known, unmerged)


def _weights(
    path: Path, shapes: Mapping[str, tuple[int, ...]], stored: dict[str, Stored], base: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The student's weights, after names and shapes were compared: a change has the shape of a weight of the base."""
    expected: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        kept = name in base and tuple(base[name].shape) == shape
        factors = stored.get(name + A)
        if kept and factors is not None and len(shape) == 2:
            rank = (*factors.shape, 0)[0]  # of another shape: refused below
            expected |= {name + B: (shape[0], rank), name + A: (rank, shape[1])}
        elif kept and name + CHANGE in stored:
            expected[name + CHANGE] = shape
        elif not kept or name in stored:
            expected[name] = shape
    compare(expected, {name: one.shape for name, one in stored.items()}, str(path))
    values = dict(read_values(stored))
    weights = {}
    for name in shapes:
        if name in values:
            weights[name] = values[name]
        elif name + A in values:
            weights[name] = _changed(name, base[name], values[name + B].double() @ values[name + A].double())
        elif name + CHANGE in values:
            weights[name] = _changed(name, base[name], values[name + CHANGE].double())
        else:
            weights[name] = base[name]
    return weights


def _changed(name: str, before: Tensor, change: Tensor) -> Tensor:
    return as_float32(name, before.double() + change)


def _metadata(path: Path) -> dict[str, Any]:
    """The checked JSON of the metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"a whole adapter in {path}", printable(error), AGAIN) from error
    if text is None or len(text) > MAX_TEXT:
        received = "something else" if text is None else f"{len(text):,} bytes of metadata"
        raise UserError(f"an adapter written by t2r save --as adapter in {path}", received, AGAIN)
    data = parse_object(text, f"the metadata of {path}")
    check_plain(data, f"the metadata of {path}")
    if data.get("version") != VERSION:
        received = printable(data.get("version"), 80)
        raise UserError(f"version {VERSION} of {path}", received, "use the version of t2r that wrote it")
    if set(data) != set(FIELDS):
        raise UserError(f"the keys {', '.join(FIELDS)} in {path}", listed(sorted(data)), AGAIN)
    base, texts = data["base"], (data["tokenizer"], data["source_tokenizer"])
    hashed = (
        isinstance(base, dict) and base and all(isinstance(one, str) and HASH.fullmatch(one) for one in base.values())
    )
    if not hashed:
        raise UserError(f"the SHA-256 of each file of the base in {path}", "something else", AGAIN)
    if not all(one is None or isinstance(one, dict) and _is_text(one) for one in texts):
        raise UserError(f"tokenizers as texts in {path}", "something else", AGAIN)
    if not isinstance(data["provenance"], dict):
        raise UserError(f"an object as the provenance in {path}", type(data["provenance"]).__name__, AGAIN)
    return data


def _is_text(own: dict[str, Any]) -> bool:
    return set(own) == {"text"} and (own["text"] is None or isinstance(own["text"], str))


def _shown(hashes: Mapping[str, str], others: Any) -> str:
    """Files by name and SHA-256, first those that are not among the `others`."""
    known = set(others)
    first = sorted(hashes.items(), key=lambda item: (item[1] in known, item[0]))
    return listed((f"{printable(name, 80)} of SHA-256 {digest}" for name, digest in first), 2)

"""Low-rank adapters that a graph holds beside its weights: y = W x + B A x, with the adapter of each row (LoRA, Hu et
al. 2021, arXiv 2106.09685).

An adapter is read as a changed model, and its factors are found in the difference of both after folding. A projection
folds linearly, W_φ (W + B A) = W_φ W + (W_φ B) A, so the rank stays.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.adapter import low_rank
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.importers.files import ADAPTER, CONFIG
from t2r_export.checkpoints.weights import assemble
from t2r_export.model.transformer import Transformer
from t2r_export.paths import ADAPTERS, existing_model
from t2r_runtime.errors import UserError

Factors = tuple[Tensor, Tensor]  # B (out, rank) and A (rank, in), float32
LORA_ALONE = "train it with LoRA of products alone"


def changed_by(
    named: Mapping[str, Path], model: Path, loaded: Checkpoint, base: Path | None = None
) -> dict[str, Callable[[], Transformer]]:
    """For each adapter what makes the model with it. Arguments and errors as for `adapted`."""
    return {name: functools.partial(adapted, name, path, model, loaded, base) for name, path in named.items()}


def adapted(name: str, path: Path, model: Path, loaded: Checkpoint, base: Path | None = None) -> Transformer:
    """The model `loaded` from `model` with an adapter.

    Args:
        path: a folder of peft; an .adapter whose base is `base` or the model; or a whole changed model.
        base: the model that the adapter is of, if it is not `model`.

    Raises:
        UserError: as for `load`; an adapter of another base; or one that changes more than weights.
    """
    path, base = existing_model(path), existing_model(model if base is None else base)
    if os.path.isdir(path) and (path / ADAPTER).exists() and not (path / CONFIG).exists():
        made = _with_peft(name, path, base, loaded)
    else:
        made = checkpoint.load(path, base=base if path.suffix == ADAPTERS else None).model
    before, after = (dataclasses.replace(one.config, generation=None) for one in (loaded.model, made))
    if before != after:
        expected = f"weights of {model} alone to be changed by the adapter {name}"
        raise UserError(expected, f"another config in {path}", "name an adapter of this model")
    return made


def _with_peft(name: str, path: Path, base: Path, loaded: Checkpoint) -> Transformer:
    """The model with what a folder of peft adds to the weights of the same names of `base`."""
    from t2r_export.checkpoints.importers import read_folder

    if not os.path.isdir(base):
        do = "pass --base FOLDER, the model in Hugging Face's format that it was trained on"
        raise UserError(f"a folder as the base of the adapter {name}, whose weights {path} names", f"{base}", do)
    plain, changed = read_folder(base), read_folder(base, path)
    if plain.config != changed.config:
        raise UserError(f"products alone in the adapter {name}", "a tied head or its embedding", LORA_ALONE)
    weights = loaded.model.state_dict()
    for weight, after in changed.weights.items():
        before, own = plain.weights[weight], weights.get(weight)
        if torch.equal(before, after):
            continue
        if own is None or own.shape != after.shape:
            expected = f"{weight} {tuple(after.shape)} in the model, which the adapter {name} changes"
            raise UserError(expected, "none" if own is None else f"{tuple(own.shape)}", "name an adapter of this model")
        weights[weight] = after if torch.equal(before, own) else own + (after - before)
    return assemble(loaded.config, weights)


def low_rank_changes(name: str, before: Transformer, after: Transformer) -> dict[str, Factors]:
    """The factors of what an adapter adds to each weight that it changes.

    Args:
        before, after: the folded model without and with it.

    Raises:
        UserError: a change that is not one of low rank.
    """
    found, old = {}, before.state_dict()
    for weight, new in after.state_dict().items():
        if torch.equal(old[weight], new):
            continue
        factors = low_rank(new.double() - old[weight].double(), new)
        if factors is None:
            expected = f"changes of low rank in the adapter {name}"
            raise UserError(expected, f"another one of {weight} {tuple(new.shape)}", LORA_ALONE)
        found[weight] = factors
    return found


def tables(changes: Sequence[Mapping[str, Factors]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A (adapters + 1, in, rank) and B (adapters + 1, rank, out) of all adapters by weight, float32, after a zero one
    for rows without an adapter. Lower ranks are padded with zeros."""
    found = {}
    for weight, (outer, inner) in {name: one for change in changes for name, one in change.items()}.items():
        rank = max(change[weight][1].shape[0] for change in changes if weight in change)
        A = np.zeros((len(changes) + 1, inner.shape[1], rank), np.float32)
        B = np.zeros((len(changes) + 1, rank, outer.shape[0]), np.float32)
        for number, change in enumerate(changes, 1):
            if weight in change:
                b, a = (factor.numpy() for factor in change[weight])
                A[number, :, : len(a)], B[number, : len(a)] = a.T, b.T
        found[weight] = A, B
    return found

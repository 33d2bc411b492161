"""Mixtures of experts in checkpoints: their keys, and how their tensors are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer, importer
from t2r_export.checkpoints.importers.keys import Keys
from t2r_export.checkpoints.importers.llama import LAYER, NAMES, POSITIONS
from t2r_export.checkpoints.importers.sources import Transform
from t2r_export.config.layer import LayerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import DenseConfig, MoEConfig

TRAINING = "router_aux_loss_coef"
REFUSED = {**POSITIONS, "output_router_logits": (None, False)}


def experts(
    fields: Fields,
    count: str = "num_local_experts",
    size: str = "intermediate_size",
    renormalize: bool = True,
    activation: str | None = None,
    top: str = "num_experts_per_tok",
    **router: Any,
) -> MoEConfig:
    """The experts of a layer.

    Args:
        count, size, top: keys of the number of experts, their hidden size, and the experts per token.
        activation: None: that of `hidden_act`.
        router: further options of MoEConfig.
    """
    return MoEConfig(
        experts=fields.size(count),
        size=fields.size(size),
        top=fields.size(top),
        renormalize=renormalize,
        activation=activation or fields.choice("hidden_act", ACTIVATIONS),
        **router,
    )


def with_moe(
    model: ModelConfig, moe: MoEConfig, sparse: Sequence[bool] = (), size: int = 0, **shared: Any
) -> ModelConfig:
    """The model with experts in place of the dense feed-forward, or beside a shared one with the same norm.

    Args:
        sparse: whether each layer has experts; (): all have.
        size: hidden size of the shared feed-forward; 0: none. shared: its further options.
    """

    def with_experts(layer: LayerConfig) -> LayerConfig:
        mixer, dense = layer.parts
        assert isinstance(dense, DenseConfig)
        other = dataclasses.replace(dense, norm=None, beside=True, size=size, **shared) if size else None
        parts = (mixer, dataclasses.replace(moe, norm=dense.norm), other)
        return LayerConfig(parts=tuple(part for part in parts if part is not None))

    chosen = zip(sparse or [True] * len(model.layers), model.layers, strict=True)
    return dataclasses.replace(model, layers=tuple(with_experts(layer) if own else layer for own, layer in chosen))


def sparse_layers(fields: Fields) -> list[bool]:
    """Which layers have experts: every decoder_sparse_step-th that is not in mlp_only_layers."""
    step, dense = fields.size("decoder_sparse_step"), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise fields.wrong("mlp_only_layers", "numbers of layers", dense)
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(fields.layers("num_hidden_layers"))]


def as_dense(shared: str) -> dict[str, str]:
    """`Importer.renamed` of a feed-forward beside experts, stored as `shared`: no layer has another dense one."""
    parts = [f"{part}_proj.{kind}" for part in ("gate", "up", "down") for kind in ("weight", "bias")]
    return {f"{LAYER}.mlp.{shared}.{part}": f"{LAYER}.mlp.{part}" for part in parts}


def _in_turn(halves: Tensor) -> Tensor:
    count, rows, width = halves.shape
    return halves.reshape(count, 2, rows // 2, width).transpose(1, 2).reshape(count, rows, width)


def _halves(rows: Tensor) -> Tensor:
    count, size, width = rows.shape
    return rows.reshape(count, size // 2, 2, width).transpose(1, 2).reshape(count, size, width)


# (E, 2·F, D): stored as each expert's gates before its ups; ours are interleaved
GATES_AND_UPS = Transform(_in_turn, _halves)


def _pieces(model: ModelConfig, up: str, down: str) -> dict[str, Transform]:
    """Transforms of the joined tensors of those names: gates and ups (E·2·F, D), and downs (E·D, F)."""
    count = _count(model)
    return {
        up: Transform(lambda x: _in_turn(x.unflatten(0, (count, -1))), lambda x: _halves(x).flatten(0, 1)),
        down: Transform(lambda x: x.unflatten(0, (count, -1)), lambda x: x.flatten(0, 1)),
    }


def _count(model: ModelConfig) -> int:
    """Experts of a layer; 1 if no layer has any."""
    parts = (part for layer in model.layers for part in layer.parts)
    return next((part.experts for part in parts if isinstance(part, MoEConfig)), 1)


def with_experts(
    keys: Keys,
    config: Callable[[Fields], ModelConfig],
    names: Mapping[str, str] = MappingProxyType({}),
    transforms: Callable[[ModelConfig], Mapping[str, Transform]] = lambda _: {},
    where: str = f"{LAYER}.mlp",
    matrices: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    **others: Any,
) -> Importer:
    """An importer of Llama's names, or of other `names`, with a tensor for each matrix of an expert.

    Args:
        where, matrices: the module of a layer's experts, and names of an expert's matrices: gate, up and down.
        transforms: of other tensors. others: further fields of Importer.
    """
    experts = f"{where}.experts"
    up, down = f"{experts}.gate_up_proj", f"{experts}.down_proj"
    ours = {
        **NAMES,
        "moe.norm": f"{LAYER}.post_attention_layernorm",
        "moe.router": f"{where}.gate",
        "moe.up": up,
        "moe.down": down,
    }

    def joined(model: ModelConfig) -> dict[str, tuple[str, ...]]:
        numbers = range(_count(model))
        return {
            whole: tuple(f"{experts}.{number}.{name}.weight" for number in numbers for name in parts)
            for whole, parts in ((up, matrices[:2]), (down, matrices[2:]))
        }

    return importer(
        keys,
        config,
        {**ours, **names},
        lambda model: {**transforms(model), **_pieces(model, up, down)},
        joined=joined,
        **others,
    )

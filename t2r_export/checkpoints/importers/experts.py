"""Mixtures of experts in checkpoints: their keys, and how their tensors are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.sources import Transform
from t2r_export.config.layer import LayerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MoEConfig


def experts(
    fields: Fields,
    count: str = "num_local_experts",
    size: str = "intermediate_size",
    renormalize: bool = True,
    activation: str | None = None,
    **router: Any,
) -> MoEConfig:
    """The experts of a layer.

    Args:
        count, size: keys of their number and of the hidden size of one. activation: None: that of `hidden_act`.
        router: further options of MoEConfig.
    """
    return MoEConfig(
        experts=fields.size(count),
        size=fields.size(size),
        top=fields.size("num_experts_per_tok"),
        renormalize=renormalize,
        activation=activation or fields.choice("hidden_act", ACTIVATIONS),
        **router,
    )


def beside(moe: MoEConfig, layer: LayerConfig, **shared: Any) -> LayerConfig:
    """The layer with experts beside its dense feed-forward, which reads what their norm gives.

    Args:
        shared: options of the dense feed-forward.
    """
    mixer, dense = layer.parts
    after = dataclasses.replace(dense, norm=None, beside=True, **shared)
    return LayerConfig(parts=(mixer, dataclasses.replace(moe, norm=dense.norm), after))


def _in_turn(halves: Tensor) -> Tensor:
    count, rows, width = halves.shape
    return halves.reshape(count, 2, rows // 2, width).transpose(1, 2).reshape(count, rows, width)


def _halves(rows: Tensor) -> Tensor:
    count, size, width = rows.shape
    return rows.reshape(count, size // 2, 2, width).transpose(1, 2).reshape(count, size, width)


# (E, 2·F, D): the gates of each expert and then its ups, which are ours in turn
GATES_AND_UPS = Transform(_in_turn, _halves)


def joined(wholes: Mapping[str, Sequence[str]]) -> Callable[[ModelConfig], dict[str, tuple[str, ...]]]:
    """`Importer.joined` of one tensor per expert and matrix: of each whole the names of its matrices, with {expert}."""
    return lambda model: {
        whole: tuple(name.replace("{expert}", str(e)) for e in range(_count(model)) for name in names)
        for whole, names in wholes.items()
    }


def pieces(up: str, down: str) -> Callable[[ModelConfig], dict[str, Transform]]:
    """Transforms of the joined tensors of those names: gates and ups (E·2·F, D), and downs (E·D, F)."""

    def transforms(model: ModelConfig) -> dict[str, Transform]:
        count = _count(model)
        return {
            up: Transform(lambda x: _in_turn(x.unflatten(0, (count, -1))), lambda x: _halves(x).flatten(0, 1)),
            down: Transform(lambda x: x.unflatten(0, (count, -1)), lambda x: x.flatten(0, 1)),
        }

    return transforms


def _count(model: ModelConfig) -> int:
    """Experts of a layer; 1 if no layer has any."""
    parts = (part for layer in model.layers for part in layer.parts)
    return next((part.experts for part in parts if isinstance(part, MoEConfig)), 1)

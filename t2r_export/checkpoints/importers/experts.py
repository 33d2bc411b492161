"""Mixtures of experts in checkpoints: their keys, and how their tensors are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.sources import Transform
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MoEConfig


def experts(
    fields: Fields, count: str = "num_local_experts", size: str = "intermediate_size", renormalize: bool = True
) -> MoEConfig:
    """The experts of a layer. Args: count, size: keys of their number and of the hidden size of one."""
    return MoEConfig(
        experts=fields.size(count),
        size=fields.size(size),
        top=fields.size("num_experts_per_tok"),
        renormalize=renormalize,
        activation=fields.choice("hidden_act", ACTIVATIONS),
    )


def packed(up: str, down: str) -> Callable[[ModelConfig], dict[str, Transform]]:
    """Transforms of the tensors of those names: gate and up (E, 2·F, D), and down (E, D, F)."""

    def transforms(model: ModelConfig) -> dict[str, Transform]:
        width = model.width
        return {
            up: Transform(lambda x: x.mT.flatten(1), lambda x: x.unflatten(1, (width, -1)).mT),
            down: Transform(lambda x: x.mT.flatten(1), lambda x: x.unflatten(1, (-1, width)).mT),
        }

    return transforms


def joined(wholes: Mapping[str, Sequence[str]]) -> Callable[[ModelConfig], dict[str, tuple[str, ...]]]:
    """`Importer.joined` of one tensor per expert and matrix: of each whole the names of its matrices, with {expert}."""
    return lambda model: {
        whole: tuple(name.replace("{expert}", str(e)) for name in names for e in range(_count(model)))
        for whole, names in wholes.items()
    }


def pieces(up: str, down: str) -> Callable[[ModelConfig], dict[str, Transform]]:
    """As `packed`, of joined tensors: the gates of all experts and then their ups (2·E·F, D), and downs (E·D, F)."""

    def transforms(model: ModelConfig) -> dict[str, Transform]:
        width, count = model.width, _count(model)
        return {
            up: Transform(
                lambda x: x.view(2, count, -1, width).permute(1, 3, 0, 2).flatten(1),
                lambda x: x.view(count, width, 2, -1).permute(2, 0, 3, 1).reshape(-1, width),
            ),
            down: Transform(
                lambda x: x.view(count, width, -1).mT.flatten(1),
                lambda x: x.view(count, -1, width).mT.reshape(count * width, -1),
            ),
        }

    return transforms


def _count(model: ModelConfig) -> int:
    """Experts of a layer; 1 if no layer has any."""
    parts = (part for layer in model.layers for part in layer.parts)
    return next((part.experts for part in parts if isinstance(part, MoEConfig)), 1)

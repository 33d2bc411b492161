"""Prunable heads of attention: kv heads with their query heads, or query heads if there is a single kv head."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch

from t2r_export.config.parts import InsideConfig
from t2r_export.model.units import Rows, Units, spread

Pieces = Mapping[str, list[list[int]]]  # by weight, per axis: sizes of concatenated pieces, over all heads


def head_units(config: InsideConfig, pieces: Callable[[InsideConfig], Pieces]) -> Units | str:
    """The prunable heads of attention, or why there are none.

    An axis of a weight has heads if its size differs in a part with one head less, so that mixers need no table of
    their weights.

    Args:
        pieces: returns the pieces of a part with a config.
    """
    if (reason := _why_not(config)) is not None:
        return reason
    count = config.heads if config.kv_heads == 1 else config.kv_heads
    if count == 1:
        return "a single head"
    rows, others = dict[str, Rows](), pieces(_with(config, count - 1))
    for name, axes in pieces(config).items():
        for axis, (sizes, less) in enumerate(zip(axes, others[name], strict=True)):
            if sizes != less:
                own = [size if size != other else -size for size, other in zip(sizes, less, strict=True)]
                rows[name] = Rows((axis,), spread(count, own))
    return Units(count, rows, lambda kept: _with(config, int(kept.sum())), reads="o.weight")


def _with(config: InsideConfig, count: int) -> InsideConfig:
    """The config with `count` kv heads, or query heads of a single kv head."""
    if config.kv_heads == 1:
        return dataclasses.replace(config, heads=count)
    return dataclasses.replace(config, heads=config.heads // config.kv_heads * count, kv_heads=count)


def _why_not(config: InsideConfig) -> str | None:
    if config.positions is not None and config.positions.biases:
        return f"{config.positions.kind} positions, which differ by the number of a head"
    if config.qk_norm_wide:
        return "a norm over all heads of q and k (qk_norm_wide)"
    if config.borrows:
        return "attention weights that two layers share"
    return "a folded layer" if config.folded else None


def joined_pieces(shape: torch.Size, joined: list[int] | None) -> list[list[int]]:
    """The pieces of each axis of a weight; `joined` are those of the axis whose size is their sum."""
    return [joined if joined is not None and sum(joined) == size else [size] for size in shape]

"""The weights of a translator's layer whose self-attention reads the source too, from those of two attentions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from t2r_export.config.layer import LayerConfig
from t2r_export.config.parts import AttentionConfig, CrossConfig, DenseConfig
from t2r_export.lab.config.merged import MergeConfig


def merge(weights: dict[str, Tensor], layer: LayerConfig, block: str, merged: MergeConfig) -> None:
    """Convert the weights of a block with cross-attention to those of a merged block, in place.

    Query, prefix projections and output are those of self-attention. Keys and values of the source come from
    cross-attention unless `merged.shared`; its query, output and norms are dropped. With `merged.feed_forward`, values
    become the product of values, output and first feed-forward matrix: exact where all heads attend alike.

    Args:
        weights: weights of the model by name.
        layer: the layer before merging.
        block: prefix of the block's weight names.
    """
    kinds = [part.kind for part in layer.parts]
    place = {kind: kinds.index(kind) for kind in (AttentionConfig.kind, CrossConfig.kind)}
    own, cross = (f"{block}parts.{number}." for number in place.values())
    gone = {place[CrossConfig.kind]}
    if not merged.shared:
        weights |= {
            f"{own}source_{name}.{kind}": weights[f"{cross}{name}.{kind}"]
            for name, kind in itertools.product("kv", ("weight", "bias"))
            if f"{cross}{name}.{kind}" in weights
        }
    if merged.feed_forward:
        dense = kinds.index(DenseConfig.kind)
        gone.add(dense)
        of_source = [] if merged.shared else [(f"{own}source_v", f"{cross}o")]
        for values, output in ((f"{own}v", f"{own}o"), *of_source):
            _product(weights, values, (output, f"{block}parts.{dense}.up"))
        for kind in ("weight", "bias"):
            weights.pop(f"{own}o.{kind}", None)
            if f"{block}parts.{dense}.down.{kind}" in weights:
                weights[f"{own}o.{kind}"] = weights[f"{block}parts.{dense}.down.{kind}"]
    _without_parts(weights, block, gone)


def _without_parts(weights: dict[str, Tensor], block: str, gone: set[int]) -> None:
    """Drop the weights of the parts `gone` of a block, and renumber the parts behind them."""
    for name in [name for name in weights if name.startswith(block)]:
        lists, number, rest = name.removeprefix(block).split(".", 2)
        tensor = weights.pop(name)
        if int(number) not in gone:
            before = sum(part < int(number) for part in gone)
            weights[f"{block}{lists}.{int(number) - before}.{rest}"] = tensor


def _product(weights: dict[str, Tensor], first: str, others: Sequence[str]) -> None:
    """Replace the projection `first` by its product with `others`; it gets a bias if the last of them has one."""
    matrix = weights[f"{first}.weight"].double()
    bias = weights.pop(f"{first}.bias", torch.zeros(len(matrix))).double()
    for name in others:
        W = weights[f"{name}.weight"].double()
        matrix, bias = W @ matrix, W @ bias + weights.get(f"{name}.bias", torch.zeros(len(W))).double()
    weights[f"{first}.weight"] = matrix.to(weights[f"{first}.weight"])
    if f"{others[-1]}.bias" in weights:
        weights[f"{first}.bias"] = bias.to(weights[f"{first}.weight"])

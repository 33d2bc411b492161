"""Gram matrices of features and inputs on a text, recorded by operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from t2r_export.model.parts.base import Part
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer

AT_ONCE = 4  # windows


class Watch(TorchOps):
    """Torch operators that record Gram matrices of the features of linear attention."""

    def __init__(self, tokens: int, like: Tensor) -> None:
        super().__init__(tokens, like)
        self.features: list[tuple[Tensor, Tensor]] = []  # of q and of k, per call: (kv heads, K, K) float64 each

    def linear_attention(self, q: Tensor, k: Tensor, *rest: Any, **others: Any) -> Any:
        self.features.append((gram(q, k.shape[1]), gram(k, k.shape[1])))
        return super().linear_attention(q, k, *rest, **others)


class Inputs(TorchOps):
    """Torch operators that accumulate Gram matrices of the inputs of some weights."""

    def __init__(self, tokens: int, like: Tensor, sums: dict[int, Tensor]) -> None:
        """Args: sums: (in, in) float64 by weight id; updated in place."""
        super().__init__(tokens, like)
        self.sums = sums

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if id(weight) in self.sums:
            rows = x.double()
            self.sums[id(weight)] += rows.mT @ rows
        return super().linear(x, weight, bias)


@torch.no_grad()
def inputs(model: Transformer, windows: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Σ xᵀx over the input rows x of each weight (out, in), (in, in) float64. Args: windows: (N, T)."""
    sums = {id(weight): torch.zeros(weight.shape[1], weight.shape[1], dtype=torch.float64) for weight in weights}
    for ids in windows.split(AT_ONCE):
        model.hidden(ids, model.init_state(len(ids)), Inputs(ids.shape[1], model.head.weight, sums))
    return [sums[id(weight)] for weight in weights]


def gram(heads: Tensor, groups: int) -> Tensor:
    """Heads (B, heads, T, K) -> Σ xᵀx over tokens and over the heads of each group, (groups, K, K) float64."""
    rows = heads.double().unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 3)
    made: Tensor = rows.mT @ rows
    return made


@torch.no_grad()
def features(model: Transformer, windows: Tensor, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
    """Sums of Gram matrices (groups, K, K) float64 of φ(q) and φ(k) per part, each scaled to trace 1 per group.

    So queries and keys have equal weight, as rows of one matrix with a column per channel (Nazari and Rusch 2026).

    Args:
        windows: (N, T) int64.
        places: (layer, part) indices.
    """
    sums = {place: [torch.zeros(()), torch.zeros(())] for place in places}
    for ids in windows.split(AT_ONCE):
        states = model.init_state(len(ids))
        step = model.context(states, model.ops(ids.shape[1]))
        rows = model.embed(ids, step)
        for layer, trace in enumerate(model.trace(rows, states, step)):
            number = layer % len(model.blocks)
            for part, of in [(part, sums[n, part]) for n, part in sums if n == number]:
                found = _watched(model, layer, part, trace.parts[part].normed, ids.shape[1], states)
                of[:] = [total + new for total, new in zip(of, found, strict=True)]
    return {place: sum((_normed(each) for each in both), torch.zeros(())) for place, both in sums.items()}


def _watched(model: Transformer, layer: int, part: int, x: Tensor, tokens: int, states: Any) -> tuple[Tensor, Tensor]:
    watch, block = Watch(tokens, model.head.weight), model.layers[layer]
    module: Part = block.parts[part]
    module(x, block.own(part, model.layer_state(states, layer)), model.context(states, watch))
    return watch.features[0]  # of S; calls for z may follow


def _normed(grams: Tensor) -> Tensor:
    traces = grams.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    return grams / traces.clamp(min=torch.finfo(traces.dtype).tiny)

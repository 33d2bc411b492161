"""Prunable channels of a linear state: features of q and k, with a feature map of independent features.

In the sums over features, φ(q)·φ(k) = Σ_j φ_j(q) φ_j(k), channel j is one term, one row of S and one element of z. Each
kv head may keep different channels. Rotated features are pruned in pairs, the same ones in all heads, because the heads
of a layer share one table of frequencies; the kept pairs keep their frequencies (`ChosenScaling`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from t2r_export.config.mixers import HybridConfig, LinearConfig
from t2r_export.model.mixers.base import HeadSizes
from t2r_export.model.units import Rows, Units

ALONE = ("relu", "relu2")  # maps whose features are independent


def channels(config: LinearConfig | HybridConfig, sizes: HeadSizes, convolved: list[int] | None = None) -> Units | str:
    """Prunable channels of a layer's state, or why there are none; weight names are those of the mixer.

    Args:
        convolved: sizes of a convolution's inputs: the arguments of φ(q) and φ(k), and v.
    """
    K, rotates = config.feature_size, sizes.feature_rope is not None
    if config.feature_map not in ALONE:
        return f"features of the map {config.feature_map}, which do not stand alone"
    if rotates and config.rotary_size not in (None, K):
        return "features of which some rotate and others do not"
    groups = 1 if rotates else sizes.kv_heads
    of_q, of_k = (_owners(heads, sizes.kv_heads, K, rotates) for heads in (sizes.heads, sizes.kv_heads))
    shared = isinstance(config, LinearConfig) and config.shared_features
    maps = {"q": of_q} if shared else {"q": of_q, "k": of_k}
    rows = {f"maps.{name}.weight": Rows((0, 2), owners) for name, owners in maps.items()}
    rows |= {f"maps.{name}.bias": Rows((0, 1), owners) for name, owners in maps.items()}
    if config.gate == "pair":
        of_gates = torch.arange(K // 2).repeat(sizes.kv_heads)
        delta = torch.full((sizes.kv_heads * (config.update_rule == "gated_delta"),), -1)
        rows |= {f"gates.{name}": Rows((0,), torch.cat([of_gates, delta])) for name in ("weight", "offset")}
    if convolved is not None:
        rows["conv.weight"] = Rows((1,), torch.cat([of_q.flatten(), of_k.flatten(), torch.full((convolved[2],), -1)]))

    def smaller(kept: Tensor) -> LinearConfig | HybridConfig:
        size = int(kept.sum()) // groups
        return dataclasses.replace(config, **(_rotated(config, kept) if rotates else {"feature_size": size}))

    return Units(groups * (K // 2 if rotates else K), rows, smaller, groups)


def _owners(heads: int, kv_heads: int, K: int, rotates: bool) -> Tensor:
    """The unit of each feature of each head, (heads, K) int64."""
    channel = torch.arange(K)
    if rotates:  # features of the first half pair with those of the second
        return (channel % (K // 2)).expand(heads, K)
    group: Tensor = torch.arange(heads) // (heads // kv_heads)
    return group[:, None] * K + channel


def _rotated(config: LinearConfig | HybridConfig, kept: Tensor) -> dict[str, Any]:
    """Changed config fields if rotated features keep these pairs."""
    pairs = config.rotary_pairs or tuple(range(config.feature_size // 2))
    chosen = tuple(pairs[place] for place in kept.nonzero().flatten().tolist())
    sizes = {"feature_size": 2 * len(chosen), "rotary_size": None}
    return {**sizes, "rotary_pairs": chosen, "rotary_of": config.rotary_of or config.feature_size}

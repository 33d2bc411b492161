"""Versions of a model without one of its layers."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from t2r_export.model.transformer import Transformer
from t2r_export.pruning.versions import Offer, Version, weight_bytes
from t2r_runtime.errors import UserError


def versions(model: Transformer, windows: Tensor) -> Offer:
    """Each layer kept or removed. The cost of removal is measured directly, so `windows` is unused.

    ShortGPT (Men et al. 2024, arXiv 2403.03853) also scores each layer, by the change of its hidden states.
    """
    places, refused = list[list[Version]](), list[str]()
    for number, block in enumerate(model.blocks):
        rest = tuple(layer for n, layer in enumerate(model.config.layers) if n != number)
        try:
            dataclasses.replace(model.config, layers=rest)
        except UserError as error:
            refused.append(f"layer {number} stays: expected {error.expected}")
            continue
        places.append([Version(number, None, n, 1, n * weight_bytes(block), lambda: None) for n in (1, 0)])
    if not places:
        raise UserError("layers of which one can go", "; ".join(refused[:1]), "leave layers out")
    return Offer(places, refused)

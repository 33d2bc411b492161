"""Steps of feature maps as if their inputs had the mean 0.

q and k of trained models have means larger than their deviations. A step of W then moves W x + b of all tokens
together: relu features fall below 0 for every token, and have no gradient there. So W and b take the steps of W and c
in W (x - m) + c, the same function with c = b + W m and a constant m (Schraudolph 1998, Centering Neural Network
Gradient Factors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.training.sharding import share


def center(optimizer: Any, parameters: Mapping[str, nn.Parameter], means: Mapping[str, Tensor]) -> None:
    """Make an optimizer's steps those of maps with centered inputs, given the inputs' means (`start.input_means`).

    Maps without `weight` and `bias` among the parameters take their usual steps.
    """
    names = [name for name in means if f"{name}.bias" in parameters]
    weights, biases = ([parameters[f"{name}.{one}"] for name in names] for one in ("weight", "bias"))
    columns = [share(means[name].unsqueeze(-1), weight) for name, weight in zip(names, weights, strict=True)]
    before: list[Tensor] = []

    @torch.no_grad()
    def gradients(*_: Any) -> None:
        for weight, bias, mean in zip(weights, biases, columns, strict=True):
            assert weight.grad is not None and bias.grad is not None
            weight.grad.sub_(mean * bias.grad.unsqueeze(1))
        before[:] = [weight.clone() for weight in weights]

    @torch.no_grad()
    def keep_means(*_: Any) -> None:
        for weight, old, bias, mean in zip(weights, before, biases, columns, strict=True):
            bias.sub_((mean * (weight - old)).sum(1))

    adam = getattr(optimizer, "parts", [optimizer])[0]  # beside Muon, which has no weights of mixers
    adam.register_step_pre_hook(gradients)
    adam.register_step_post_hook(keep_means)

"""Diagnostics of training: feature statistics, and the origin of non-finite values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.batches.batch import Batch, initial_states
from t2r_export.model.transformer import Transformer
from t2r_export.training.stages import Stage


@torch.no_grad()
def feature_statistics(model: Transformer, batches: Iterable[Batch]) -> list[dict[str, float]]:
    """Feature statistics of each layer (`Part.statistics`) over batches.

    Statistics named `smallest…` are reduced by minimum, `largest…` by maximum, others by mean.
    """
    values: list[dict[str, list[float]]] = [{} for _ in model.layers]
    for batch in batches:
        states = initial_states(model, batch)
        step = model.context(states, model.ops(batch.ids.shape[1]))
        for number, trace in enumerate(model.trace(model.embed(batch.ids, step), states, step)):
            block = model.layers[number]
            for place in block.mixing[:1]:
                own = block.own(place, model.layer_state(states, number))
                found = block.parts[place].statistics(trace.parts[place].normed, own, step)
                for name, value in found.items():
                    values[number].setdefault(name, []).append(float(value))
    return [{name: _combined(name, of_batches) for name, of_batches in layer.items()} for layer in values]


def _combined(name: str, values: list[float]) -> float:
    if name.startswith("smallest"):
        return min(values)
    return max(values) if name.startswith("largest") else sum(values) / len(values)


def first_not_finite(stage: Stage, batch: Batch) -> str | None:
    """Find the first non-finite value in the loss of a batch and its gradients, in order of computation.

    Checks weights, outputs of modules, then gradients from the loss back to the first layer. Clears all gradients.

    Returns:
        A description such as `the output of student.blocks.2.parts.0.inner.maps.q`; None if all values are finite.
    """
    for name, weight in stage.named_parameters():
        if not bool(weight.isfinite().all()):
            return f"the weight {name}"
    found: list[str] = []
    hooks = [module.register_forward_hook(_watch(name, found)) for name, module in stage.named_modules() if name]
    try:
        loss = stage(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if found or not bool(loss.isfinite()):
        return f"the output of {found[0]}" if found else "the loss itself"
    loss.backward()
    gradients = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
    stage.zero_grad()
    broken = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    return f"the gradient of {broken[-1]}" if broken else None


def _watch(name: str, found: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        # only outputs of mixers and blocks: states may contain infinity on purpose
        value: Tensor = output[0] if isinstance(output, tuple) else output
        if not bool(value.isfinite().all()):
            found.append(name)

    return hook

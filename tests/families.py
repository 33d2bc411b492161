"""Tiny random transformers models, and the logits and states of their full forward pass.

Their decode step is no reference: it omits what the prefill does (the clamp of Mamba-2's dt).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.model.ops import State
from t2r_runtime.contract.state_spec import POSITION


@dataclass(frozen=True)
class Family:
    """A transformers model family.

    Args:
        name: prefix of its class names.
        sizes: config fields, all different.
        config: prefix of its config class, if another.
        spread: standard deviation of random weights.
    """

    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    config: str | None = None
    spread: float = 0.3

    def changed(self, **changes: Any) -> Family:
        return replace(self, sizes={**self.sizes, **changes})

    def imported(self, folder: Path) -> tuple[Any, Checkpoint]:
        """transformers' model, and our checkpoint of its saved folder."""
        theirs = reference(self)
        theirs.save_pretrained(folder)
        return theirs, checkpoint.load(folder)


def reference(family: Family) -> Any:
    """A model with weights large enough that each one matters."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family.config or family.name}Config")(**family.sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=family.spread)
    for name in sorted(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()):
        torch.nn.init.normal_(model.get_buffer(name), std=family.spread)  # router biases
    return model


@lru_cache
def text(length: int, vocabulary: int, batch: int = 2) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def full_forward(theirs: Any, ours: Checkpoint, ids: Tensor) -> tuple[Tensor, State[Tensor]]:
    """Logits without a cache, and the states after the prompt with our names and shapes."""
    logits = theirs(ids, use_cache=False, return_dict=True).logits
    projected: dict[str, Tensor] = {}
    layers = list(theirs.base_model.layers)
    hooks = [_kept(layer, number, projected) for number, layer in enumerate(layers)]
    made = theirs(ids, use_cache=True, return_dict=True)
    for hook in (hook for hooks_of_layer in hooks for hook in hooks_of_layer):
        hook.remove()
    if "past_key_values" in made or "cache_params" in made:
        layers = (made.cache_params if "cache_params" in made else made.past_key_values).layers
    states = {}
    for spec in ours.model.state_spec():
        name, _, layer = spec.name.partition(".")
        shape = spec.dims(len(ids), ids.shape[1])
        if spec.name == POSITION:
            states[name] = torch.full((len(ids),), ids.shape[1], dtype=torch.int32)
        elif name in ("k", "v") and not spec.grows:
            states[spec.name] = _window(projected[spec.name], shape)
        else:
            states[spec.name] = _as_ours(name, layers[int(layer)], shape)
    return logits, states


def _kept(layer: Any, number: int, found: dict[str, Tensor]) -> list[Any]:
    """Hooks that record a layer's keys and values before rotation, as windows store them."""

    def keep(name: str) -> Any:
        return lambda module, inputs, output: found.__setitem__(f"{name}.{number}", output.flatten(2))

    modules = {name[-6:]: module for name, module in layer.named_modules()}
    last = {"k": modules.get("k_norm", modules.get("k_proj")), "v": modules.get("v_proj")}
    return [module.register_forward_hook(keep(name)) for name, module in last.items() if module is not None]


def _window(projected: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The last tokens of rows (B, T, G · d), left-padded with zeros."""
    rows = projected.unflatten(-1, (shape[1], shape[3])).transpose(1, 2)
    return torch.nn.functional.pad(rows, (0, 0, shape[2], 0))[:, :, -shape[2] :]


def _as_ours(name: str, layer: Any, shape: tuple[int, ...]) -> Tensor:
    """A layer's state from its cache or its modules."""
    if name in "kv":
        found: Tensor = layer.keys if name == "k" else layer.values
    elif hasattr(layer, "temporal_block"):  # RecurrentGemma returns no cache
        block = layer.temporal_block
        found = block.conv1d_state.mT[:, None] if name == "conv" else block.rg_lru.recurrent_states
    elif name == "conv":  # their cache has one more column than a step reads
        found = layer.conv_states[0].mT[:, None, -shape[2] :]
    else:
        found = layer.recurrent_states[0]
    return found if found.shape == shape else found.mT

"""Swap softmax attention for linear attention, layer by layer (Kasai et al. 2021, section 3: "swap, then finetune").

Requires a model with softmax layers. Ensures a model with the same weights everywhere, new feature maps in the chosen
layers, and nothing else changed. What comes out has not been finetuned: it is a starting point.
"""

from __future__ import annotations

import dataclasses

import torch

from t2r_export.config import Guard, LinearConfig, SoftmaxConfig
from t2r_export.model import Transformer
from t2r_runtime.errors import UserError


def convert(
    model: Transformer,
    feature_size: int,
    layers: str = "all",
    shared_features: bool = False,
    positions: str | None = None,
    guard: Guard | None = None,
    query_scale: float = 1.0,
    seed: int = 0,
) -> Transformer:
    """A copy of `model` with T2R attention in the chosen layers.

    Args:
        feature_size: K, features a head.
        layers: `all`, `none`, `every:N` (keep every Nth layer softmax) or layer numbers, `0,2,5`.
        shared_features: one map for q and k of a head, as in the authors' code.
        positions: for rotary models, `keep` rotates q and k before φ, `drop` does not (and lets the layer fold).
            Default: keep, which costs the fold and was measured to lose far less quality (docs/quality.md).
        guard: of the denominator. Default: add 1e-6. The authors clamp at 1e-2, which passes no gradient where the
            denominator is smaller, and was measured to train worse (docs/quality.md).
        query_scale: multiplies q before φ.
        seed: of the maps' random weights.

    Raises:
        UserError: a size or layer that cannot be, or a chosen layer that is not softmax.
    """
    config = model.config
    chosen = choose_layers(layers, len(config.layers))
    if positions is not None and config.position != "rotary":
        raise UserError(
            "positions only for a rotary model", f"{positions!r} for {config.position} positions", "leave it out"
        )
    mixer = LinearConfig(feature_size, shared_features, positions or "keep", query_scale, guard or Guard())
    for layer in chosen:
        if not isinstance(config.layers[layer], SoftmaxConfig):
            raise UserError(
                f"layer {layer} to be softmax", f"a {config.layers[layer].kind} layer", "convert the original model"
            )
    mixers = tuple(mixer if layer in chosen else kept for layer, kept in enumerate(config.layers))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted = Transformer(dataclasses.replace(config, layers=mixers))
    missing, unexpected = converted.load_state_dict(model.state_dict(), strict=False)
    assert not unexpected and all(".phi_" in name for name in missing), (missing, unexpected)
    return converted.to(model.embedding.weight).eval()


def choose_layers(text: str, count: int) -> set[int]:
    """The layers to convert that `all`, `none`, `every:N` or `0,2,5` name, of `count` layers.

    `every:N` converts all but each Nth: of eight layers, `every:4` keeps 3 and 7 softmax.
    """
    everything = set(range(count))
    if text in ("all", "none"):
        return everything if text == "all" else set()
    try:
        if text.startswith("every:"):
            step = int(text.removeprefix("every:"))
            if step < 1:
                raise ValueError
            return everything - set(range(step - 1, count, step))
        chosen = {int(number) for number in text.split(",")}
    except ValueError:
        raise UserError("layers as all, none, every:N or 0,2,5", repr(text), "write it in one of those forms") from None
    if not chosen <= everything:
        raise UserError(f"layers from 0 to {count - 1}", text, "choose layers that the model has")
    return chosen

"""Swap softmax attention for another mixer, layer by layer (Kasai et al. 2021, section 3: "swap, then finetune").

Requires a model with softmax layers, over all tokens or over a window. Ensures a model with the same weights
everywhere, new mixers with new parameters of their own in the chosen layers, and nothing else changed. What comes out
has not been finetuned: it is a starting point.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.feed_forward import NoneConfig
from t2r_export.config.layers import choose_layers
from t2r_export.config.mixers import LinearConfig, MergedConfig, MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

CROSS_FEATURES = 32  # of a head (Kasai et al. 2021, section 3.2)


def convert(
    model: Transformer,
    mixer: MixerConfig,
    layers: str = "all",
    seed: int = 0,
    cross: MixerConfig | None = None,
    encoder: MixerConfig | None = None,
) -> Transformer:
    """A copy of `model` with another mixer in the chosen layers.

    Args:
        mixer: what the chosen layers become, `LinearConfig(32)` for T2R with 32 features a head. What a layer of the
            new kind shares with softmax attention (the projections of q, k, v and the output) keeps its weights; what
            it has no place for is dropped.
        layers: `all`, `none`, `every:N` (keep every Nth layer softmax) or layer numbers, `0,2,5`. Converting twice
            gives layers of two kinds.
        seed: of the new parameters' random weights.
        cross: of a translator, what the chosen layers look at the source with; None leaves that as it is. For a
            merged one see `merge`.
        encoder: of a translator, what all layers of its encoder become; None leaves them as they are.

    Raises:
        UserError: a mixer or layer that cannot be, or a chosen layer that is neither softmax nor a softmax window.
    """
    config = model.config
    if config.encoder is None and (cross is not None or encoder is not None):
        raise UserError("a translator, whose layers look at a source", "a decoder alone", "leave the cross layers out")
    chosen = choose_layers(layers, len(config.layers))
    mixers, crosses = (
        _swapped(kept, new, chosen, what)
        for kept, new, what in ((config.layers, mixer, "layer"), (config.crosses, cross, "cross layer"))
    )
    changes: dict[str, Any] = {"layers": mixers, "crosses": crosses}
    weights, new = model.state_dict(), _prefixes(chosen, cross is not None)
    if isinstance(cross, MergedConfig) and cross.feed_forward:
        kept_ffns = map(config.feed_forward, range(len(mixers)))
        changes["feed_forwards"] = tuple(NoneConfig() if n in chosen else old for n, old in enumerate(kept_ffns))
    changed = dataclasses.replace(config, **changes)
    if isinstance(cross, MergedConfig):
        for layer in chosen:
            merge(weights, f"blocks.{layer}.", cross)
    if encoder is not None and config.encoder is not None:
        kept = config.encoder.layers
        swapped = _swapped(kept, encoder, set(range(len(kept))), "encoder layer")
        changed = dataclasses.replace(changed, encoder=dataclasses.replace(config.encoder, layers=swapped))
        new = (*new, *(f"encoder.blocks.{layer}.mixers.0." for layer in range(len(kept))))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted = Transformer(changed)
    missing, unexpected = converted.load_state_dict(weights, strict=False)
    assert all(name.startswith(new) for name in (*missing, *unexpected)), (missing, unexpected)
    return converted.to(model.embedding.weight).eval()


def merge(weights: dict[str, Tensor], block: str, merged: MergedConfig) -> None:
    """Make the weights of a block that looks at the source with a layer of its own those of a merged layer, as far as
    they have a place there.

    Query, prefix and output stay the layer's own. The source's keys and values are those of the layer that looked at
    it, unless the prefix's serve for both; its query, its output and its norm go. With the feed-forward inside, values
    are the products of values, output and first matrix: what heads that look alike would give its activation.

    Args:
        weights: the model's, by name; changed in place. block: what the names of the block's begin with.
    """
    own, cross = f"{block}mixers.0.", f"{block}mixers.1."
    if not merged.shared:
        weights |= {
            f"{own}source_{name}.{kind}": weights[f"{cross}{name}.{kind}"]
            for name, kind in itertools.product("kv", ("weight", "bias"))
            if f"{cross}{name}.{kind}" in weights
        }
    if merged.feed_forward:
        of_source = [] if merged.shared else [(f"{own}source_v", f"{cross}o")]
        for values, output in ((f"{own}v", f"{own}o"), *of_source):
            _product(weights, values, (output, f"{block}ffn.up"))
        for kind in ("weight", "bias"):
            weights.pop(f"{own}o.{kind}", None)
            if f"{block}ffn.down.{kind}" in weights:
                weights[f"{own}o.{kind}"] = weights[f"{block}ffn.down.{kind}"]
    gone = [cross, f"{block}norms.1.", f"{block}norms_after.1."]
    gone += [f"{block}ffn"] if merged.feed_forward else []
    for name in [name for name in weights if name.startswith(tuple(gone))]:
        del weights[name]


def _product(weights: dict[str, Tensor], first: str, others: Sequence[str]) -> None:
    """Let the projection `first` be the same with `others` behind it; it has a bias if the last of them has."""
    matrix = weights[f"{first}.weight"].double()
    bias = weights.pop(f"{first}.bias", torch.zeros(len(matrix))).double()
    for name in others:
        W = weights[f"{name}.weight"].double()
        matrix, bias = W @ matrix, W @ bias + weights.get(f"{name}.bias", torch.zeros(len(W))).double()
    weights[f"{first}.weight"] = matrix.to(weights[f"{first}.weight"])
    if f"{others[-1]}.bias" in weights:
        weights[f"{first}.bias"] = bias.to(weights[f"{first}.weight"])


def _swapped(
    kept: tuple[MixerConfig, ...], mixer: MixerConfig | None, chosen: set[int], what: str
) -> tuple[MixerConfig, ...]:
    """The mixers of all layers with another in the chosen ones, which must be softmax."""
    if mixer is None:
        return kept
    for layer in chosen:
        if not isinstance(kept[layer], SoftmaxConfig | WindowConfig):
            raise UserError(f"{what} {layer} to be softmax or a window", kept[layer].kind, "convert the original model")
    return tuple(mixer if layer in chosen else old for layer, old in enumerate(kept))


def _prefixes(chosen: set[int], cross: bool) -> tuple[str, ...]:
    """Of the weights of the chosen layers' mixers."""
    return tuple(f"blocks.{layer}.mixers.{n}." for layer in chosen for n in range(1 + cross))


def source_mixers(
    model: ModelConfig,
    mixer: MixerConfig,
    cross_features: int | None,
    encoder: bool,
    merged: MergedConfig | None = None,
) -> tuple[MixerConfig | None, MixerConfig | None]:
    """What a translator's cross layers and its encoder's become, each where it becomes another.

    Args:
        mixer: what the decoder's own layers become. cross_features: of the cross layers: K, 0 to leave them softmax;
            None: CROSS_FEATURES where T2R or another linear attention takes the place of softmax, the paper's number.
        merged: what the cross layers become instead.
        encoder: whether its layers become linear too, with as many features as the decoder's.

    Raises:
        UserError: another mixer than a linear one for the encoder, or either for a decoder alone.
    """
    linear = mixer if isinstance(mixer, LinearConfig) else None
    if model.encoder is None:
        if cross_features is not None or encoder or merged is not None:
            raise UserError("a translator", "a decoder alone", "leave out --cross-feature-size, --merged and --encoder")
        return None, None
    if merged is not None and cross_features is not None:
        raise UserError(
            "layers that are merged or have features of their own", "both", "leave --merged out, or the size"
        )
    if encoder and linear is None:
        raise UserError("a linear mixer for the encoder", mixer.kind, "leave out --encoder")
    already = any(isinstance(cross, MergedConfig) for cross in model.crosses)  # which the layers' own mixers read
    usual = CROSS_FEATURES if linear is not None and not already else 0
    size = usual if cross_features is None else cross_features
    same = {name: getattr(linear, name) for name in ("feature_map", "guard", "query_scale") if linear is not None}
    cross: MixerConfig | None = merged or (LinearConfig(size, **same) if size else None)
    return cross, LinearConfig(linear.feature_size, **same) if encoder and linear is not None else None


def provenance(original: Checkpoint, /, **done: Any) -> dict[str, Any]:
    """What a converted checkpoint says of its history: that of the original, `done`, and the original's config.

    With that config `t2r finetune` rebuilds the teacher: after a second conversion, the model from before the first.
    """
    earlier = original.provenance.get("convert", {}).get("source_config")
    made = {"source_sha256": original.sha256, "source_config": earlier or original.config.to_dict(), **done}
    return {**original.provenance, "convert": made}

"""Replace softmax attention by another mixer in chosen layers (Kasai et al. 2021, section 3: "swap, then finetune").

The source layers are softmax attention, full or windowed. All existing weights are kept; new mixers get new, untrained
parameters. The result is a starting point for finetuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.untrained import marked, new_parts, untrained
from t2r_export.checkpoints.weights import assemble
from t2r_export.config.layer import LayerConfig, mapped, mixed
from t2r_export.config.layer_numbers import choose_layers
from t2r_export.config.mixers import HybridConfig, LinearConfig, MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import AttentionConfig, CrossConfig, DenseConfig, JointConfig, PartConfig
from t2r_export.config.plain import of_table, to_plain
from t2r_export.config.tagged import resolve
from t2r_export.config.uniform import CROSSES
from t2r_export.model.draft_head import model_of
from t2r_export.model.initialize import initialize
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

CROSS_FEATURES = 32  # features per head (Kasai et al. 2021, section 3.2)


@dataclass(frozen=True)
class Conversion:
    """A converted model, and what it has that the original lacks."""

    model: Transformer
    added: int  # parameters
    untrained: list[str]  # parts, for `provenance`


def convert(
    model: Transformer,
    mixer: MixerConfig | PartConfig,
    layers: str = "all",
    seed: int = 0,
    cross: MixerConfig | JointConfig | None = None,
    encoder: MixerConfig | None = None,
) -> Transformer:
    """The model of `conversion`."""
    return conversion(model, mixer, layers, seed, cross, encoder).model


def conversion(
    model: Transformer,
    mixer: MixerConfig | PartConfig,
    layers: str = "all",
    seed: int = 0,
    cross: MixerConfig | JointConfig | None = None,
    encoder: MixerConfig | None = None,
) -> Conversion:
    """A copy of `model` with another mixer in the chosen layers.

    Args:
        mixer: the new mixer, such as `LinearConfig(32)` for T2R with 32 features per head. Weights shared with softmax
            attention (projections of q, k, v and output) are kept; weights without a counterpart are dropped.
        layers: `all`, `softmax` (layers of softmax attention that are no windows), `none`, `every:N` (keep every Nth
            layer softmax) or numbers such as `0,2,5`. Converting twice gives layers of two kinds.
        seed: seed of the new parameters.
        cross: new cross-attention of the chosen layers of a translator; None keeps it. For merged layers see
            t2r_export.lab.merge.
        encoder: new mixer of all encoder layers of a translator; None keeps them.

    Raises:
        UserError: an invalid mixer or layer number, or a chosen layer that is not softmax attention.
    """
    config = model.config
    if config.encoder is None and (cross is not None or encoder is not None):
        raise UserError("a translator, to convert cross-attention", "a decoder alone", "leave out cross and encoder")
    chosen = choose_layers(layers, [_is_softmax(_mixing(layer, "layers"), windows=False) for layer in config.layers])
    changes: dict[str, Any] = {
        "layers": mapped(
            config.layers, lambda n, old: _changed(n, old, n in chosen, _rotating(mixer, old, config), cross)
        )
    }
    weights, new = model.state_dict(), tuple(f"blocks.{layer}.parts." for layer in chosen)
    if isinstance(cross, JointConfig):
        for layer in chosen:
            resolve(cross.WEIGHTS)(weights, config.layers[layer], f"blocks.{layer}.", cross)
    if encoder is not None and config.encoder is not None:
        theirs = config.encoder.layers
        swapped = mapped(theirs, lambda n, old: _swapped(old, encoder, "encoder", f"encoder layer {n}"))
        changes["encoder"] = dataclasses.replace(config.encoder, layers=swapped)
        new = (*new, *(f"encoder.blocks.{layer}.parts.0." for layer in range(len(theirs))))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted = model_of(dataclasses.replace(config, **changes))
    missing, unexpected = converted.load_state_dict(weights, strict=False)
    assert all(name.startswith(new) for name in (*missing, *unexpected)), (missing, unexpected)
    return _made(model, converted, missing)


def _made(model: Transformer, made: Transformer, random: Collection[str]) -> Conversion:
    """The conversion of `model` to `made`, whose weights `random` are not the model's."""
    added = {name: weight.numel() for name, weight in made.named_parameters() if name in random}
    return Conversion(made.to(model.head.weight).eval(), sum(added.values()), new_parts(model, made, added))


def reshape(model: Transformer, config: ModelConfig, seed: int = 0) -> Conversion:
    """A model of another config, with every weight of `model` that has a place in it, and random ones for the rest.

    A weight has a place if name and shape are the same and, in a part of a layer, the part's kind.

    Args:
        seed: seed of the random weights, as for `initialize`.

    Raises:
        UserError: another vocabulary size, so that tokens would mean other texts.
    """
    theirs = model.config
    if config.vocab_size != theirs.vocab_size:
        raise UserError(f"the teacher's {theirs.vocab_size} tokens", f"{config.vocab_size}", "correct vocab_size")
    made, before, after = initialize(config, seed), _kinds(theirs), _kinds(config)
    other = tuple(place for place, kind in after.items() if before.get(place) != kind)
    shapes = {name: weight.shape for name, weight in made.state_dict().items() if not name.startswith(other)}
    kept = {name: weight for name, weight in model.state_dict().items() if shapes.get(name) == weight.shape}
    missing, _ = made.load_state_dict(kept, strict=False)
    return _made(model, made, missing)


def _kinds(config: ModelConfig) -> dict[str, str]:
    """The kind of every part, keyed by the prefix of its weights' names."""
    stacks = [("", config.layers), *([("encoder.", config.encoder.layers)] if config.encoder is not None else [])]
    return {
        f"{stack}blocks.{layer}.parts.{number}.": part.kind
        for stack, layers in stacks
        for layer, one in enumerate(layers)
        for number, part in enumerate(one.parts)
    }


def with_context(model: Transformer, length: int) -> Transformer:
    """A model of the same weights whose softmax layers see the last `length` tokens: states of fixed size.

    Up to `length` tokens it computes the same function; frequencies that depend on the text length are those of
    `length` tokens.

    Raises:
        UserError: no cache grows, caches of 8 bits, or a layer that borrows attention weights.
    """

    def bounded(_: int, layer: LayerConfig) -> LayerConfig:
        for part in layer.parts:
            inside = getattr(part, "inside", None)
            if isinstance(inside, SoftmaxConfig) and part.group == "layers":
                if inside.cache_bits != 32:  # caches round rotated keys, windows plain ones: another function
                    expected, received = "caches of float32, for a context", f"cache_bits={inside.cache_bits}"
                    raise UserError(expected, received, f"convert the model with window:window={length},cache_bits=8")
                window = WindowConfig(window=length, sinks=0, memory=inside.memory)
                layer = layer.replaced(part, mixed(part, window))
        return layer

    config = model.config
    layers = mapped(config.layers, bounded)
    if layers == config.layers:
        raise UserError("softmax layers, for a context", "none: every state has a fixed size", "leave out --context")
    return for_length(assemble(dataclasses.replace(config, layers=layers), model.state_dict()), length)


def for_length(model: Transformer, length: int) -> Transformer:
    """A model of the same weights whose rotary positions are those of texts of `length` tokens."""
    layers = mapped(model.config.layers, lambda _, layer: layer.for_length(length))
    if layers == model.config.layers:
        return model
    return assemble(dataclasses.replace(model.config, layers=layers), model.state_dict())


def context_of(model: Transformer, layers: Sequence[Any]) -> int | None:
    """The context with which a graph of `model` was exported; None: caches that grow.

    Args:
        layers: the graph's described layers. Entries that do not describe a window are ignored.

    Raises:
        UserError: a window of invalid size.
    """
    for own, recorded in zip(model.config.layers, layers, strict=False):
        for part, inside in zip(own.parts, _insides(recorded), strict=False):
            if isinstance(getattr(part, "inside", None), SoftmaxConfig) and inside.get("kind") == WindowConfig.kind:
                window: Any = inside.get("window")
                return WindowConfig(window=window, sinks=0).window
    return None


def _insides(recorded: Any) -> list[Mapping[str, Any]]:
    """The entry `inside` of each part of a described layer; empty if missing or unreadable."""
    parts = recorded.get("parts") if isinstance(recorded, Mapping) else None
    listed = parts if isinstance(parts, list) else []
    found = [part.get("inside") if isinstance(part, Mapping) else None for part in listed]
    return [inside if isinstance(inside, Mapping) else {} for inside in found]


def _rotating(mixer: MixerConfig | PartConfig, layer: LayerConfig, model: ModelConfig) -> MixerConfig | PartConfig:
    """The mixer; without rotation of features in a layer without positions, if other layers of the model rotate."""
    rotates = getattr(_mixing(layer, "layers"), "rotary", None) is not None or not model.rotates
    if rotates or not isinstance(mixer, LinearConfig | HybridConfig) or mixer.positions != "after":
        return mixer
    gate = "data" if mixer.gate == "pair" else mixer.gate
    return dataclasses.replace(mixer, positions="keep", rotary_size=None, frequency_scale=1.0, gate=gate)


def _changed(
    number: int,
    layer: LayerConfig,
    chosen: bool,
    mixer: MixerConfig | PartConfig,
    cross: MixerConfig | JointConfig | None,
) -> LayerConfig:
    """The config of a converted layer."""
    if not chosen:
        return layer
    # a student uses the frequencies of short texts for all texts
    layer = _swapped(layer, mixer, "layers", f"layer {number}").for_length(None)
    if isinstance(cross, JointConfig):
        return _merged(layer, cross, number)
    return layer if cross is None else _swapped(layer, cross, "crosses", f"cross layer {number}")


def _swapped(layer: LayerConfig, mixer: MixerConfig | PartConfig, group: str, what: str) -> LayerConfig:
    """A layer with another mixer in its softmax part of that group."""
    old = _mixing(layer, group)
    if not _is_softmax(old):
        received = "none" if old is None else old.label
        raise UserError(f"{what} to be softmax or a window", received, "convert the original model")
    return layer.with_mixer(mixer, group)


def _mixing(layer: LayerConfig, group: str) -> PartConfig | None:
    return next((part for part in layer.mixers if part.group == group), None)


def _is_softmax(part: PartConfig | None, windows: bool = True) -> bool:
    return isinstance(getattr(part, "inside", None), SoftmaxConfig | WindowConfig if windows else SoftmaxConfig)


def _merged(layer: LayerConfig, merge: JointConfig, number: int) -> LayerConfig:
    """A layer whose self-attention also reads the source, in place of cross-attention."""
    own = next((part for part in layer.parts if isinstance(part, AttentionConfig)), None)
    cross = next((part for part in layer.parts if isinstance(part, CrossConfig)), None)
    dense = next((part for part in layer.parts if isinstance(part, DenseConfig)), None)
    if own is None or cross is None:
        raise UserError(f"self-attention and cross-attention in layer {number}", "other parts", "choose another mixer")
    inside: dict[str, Any] = {}
    if merge.feed_forward:
        if dense is None or dense.gated or dense.rank:
            what = "an ungated feed-forward of whole matrices in each layer to merge"
            raise UserError(what, "another", "leave the feed-forward out")
        inside = {"hidden": dense.size, "hidden_bias": dense.bias, "activation": dense.activation}
        layer = layer.replaced(dense, None)
    return layer.replaced(cross, None).replaced(own, merge.part(own, **inside))


def source_mixers(
    model: ModelConfig,
    mixer: MixerConfig | PartConfig,
    cross: tuple[str, Mapping[str, Any]] | None = None,
    encoder: bool = False,
) -> tuple[MixerConfig | JointConfig | None, MixerConfig | None]:
    """New mixers of a translator's cross-attention and encoder; None keeps the present one.

    Args:
        mixer: the new mixer of the decoder's self-attention.
        cross: a kind in CROSSES with options; plain softmax keeps cross-attention. None: linear if `mixer` is linear.
            Linear cross-attention defaults to CROSS_FEATURES features and the other options of `mixer`.
        encoder: convert the encoder to linear attention with the decoder's feature size.

    Raises:
        UserError: an encoder to convert with a `mixer` that is not linear, or `cross` or `encoder` without a
            translator.
    """
    linear = mixer if isinstance(mixer, LinearConfig) else None
    if model.encoder is None:
        if cross is not None or encoder:
            raise UserError("a translator", "a decoder alone", "leave out --cross and --encoder")
        return None, None
    if encoder and linear is None:
        raise UserError("a linear mixer for the encoder", mixer.kind, "leave out --encoder")
    # merged layers read the source in their self-attention
    already = any(part.reads_source and part.group == "layers" for layer in model.layers for part in layer.parts)
    kind, given = cross or ("linear" if linear is not None and not already else "softmax", {})
    same = {name: getattr(linear, name) for name in ("feature_map", "guard", "query_scale") if linear is not None}
    options = (
        {"feature_size": CROSS_FEATURES, **{name: to_plain(value) for name, value in same.items()}, **given}
        if kind == "linear"
        else given
    )
    made = None if kind == "softmax" and not given else of_table(CROSSES, {"kind": kind, **options}, "cross")
    return made, LinearConfig(linear.feature_size, **same) if encoder and linear is not None else None


def provenance(original: Checkpoint, new: Sequence[str] = (), /, **done: Any) -> dict[str, Any]:
    """Provenance of a converted checkpoint: the original's, `done`, and the config of the unconverted model.

    `new` are the conversion's untrained parts, which are marked (t2r_export.checkpoints.untrained).

    From this config `t2r finetune` rebuilds the teacher; after two conversions it is the config before the first.
    `source_runs` is the number of finetuning runs before that conversion; 0 if absent.
    """
    earlier = original.provenance.get("convert")
    if earlier is None:
        runs = len(original.provenance.get("finetune", []))
        earlier = {"source_config": original.config.to_dict(), **({"source_runs": runs} if runs else {})}
    kept = {name: earlier[name] for name in ("source_config", "source_runs") if name in earlier}
    made = {**original.provenance, "convert": {"source_sha256": original.sha256, **kept, **done}}
    return marked(made, [*untrained(original.provenance), *new])

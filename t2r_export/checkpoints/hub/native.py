"""Models with a native transformers class: the config.json of a family, from its importer's table in reverse.

A family's importer lists the keys that it reads. A model belongs to the family if importing the folder would give the
same model. Weights are renamed by the same table of names, in reverse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.base import ACTIVATIONS
from t2r_export.checkpoints.importers.rotary import FULL, LENGTH, SHARE, SLIDING
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.layer import mixer_of
from t2r_export.config.mixers import WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import AttentionConfig, DenseConfig, ShortConvConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import LinearScaling, Llama3Scaling, ScalingConfig, YarnScaling
from t2r_runtime.errors import UserError

# family → class of transformers; only families whose importers scale no weights
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "arcee": "ArceeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
}
EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")  # each family has one


def native_config(loaded: Checkpoint) -> dict[str, Any] | None:
    """config.json of the family that a model was imported from, else of the first that fits; None: none fits."""
    origin = loaded.provenance.get("origin")
    own = origin.get("model_type") if isinstance(origin, dict) else None
    found = (_of(family, loaded) for family in ([own] if own in CLASSES else CLASSES))
    return next((config for config in found if config is not None), None)


def _of(family: str, loaded: Checkpoint) -> dict[str, Any] | None:
    """config.json of a family; None if importing it would give another model."""
    model, importer = loaded.config, IMPORTERS[family]
    try:
        keys = {name: value for name, value in _keys(loaded).items() if name in importer.keys.read}
        config = {"model_type": family, "architectures": [CLASSES[family]], **keys}
        fields = importer.fields(config, "config.json")
        read = importer.config(fields)
    except (UserError, _NoKey):
        return None
    special = {name: getattr(model, name) for name in ("bos_token", "eos_tokens", "generation")}
    if dataclasses.replace(read, **special) != model:
        return None
    return {name: value for name, value in config.items() if name in ("model_type", *fields.read, "architectures")}


class _NoKey(Exception):
    """A layer, scaling or activation that no key expresses."""


def _keys(loaded: Checkpoint) -> dict[str, Any]:
    """The model as keys of all families; each family reads some of them."""
    model = loaded.config
    parts = [part for layer in model.layers for part in layer.parts]
    heads = next((part for part in parts if isinstance(part, AttentionConfig)), None)
    dense = next((part for part in parts if isinstance(part, DenseConfig)), None)
    if heads is None or dense is None:
        raise _NoKey
    activation = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == dense.activation), None)
    norm = model.last_norm
    if activation is None or norm is None or model.width % heads.heads:  # transformers' classes refuse these
        raise _NoKey
    return {
        "vocab_size": model.vocab_size,
        **dict.fromkeys(("hidden_size", "n_embd"), model.width),
        **dict.fromkeys(("intermediate_size", "n_inner"), dense.size),
        **dict.fromkeys(("num_hidden_layers", "n_layer"), len(model.layers)),
        **dict.fromkeys(("num_attention_heads", "n_head"), heads.heads),
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_size,
        **dict.fromkeys(("hidden_act", "activation_function"), activation),
        **dict.fromkeys(EPS, norm.eps),
        "tie_word_embeddings": model.tied_head,
        **dict.fromkeys(("attention_bias", "use_qkv_bias"), heads.qkv_bias),
        **dict.fromkeys(("mlp_bias", "use_bias"), dense.bias),
        "use_parallel_residual": any(part.beside for part in parts),
        **_lengths(loaded),
        **_windows(model),
        **_rope(model),
        **_convolutions(model),
    }


def _lengths(loaded: Checkpoint) -> dict[str, Any]:
    """The number of positions: of a table, else from the imported config."""
    origin = loaded.provenance.get("origin")
    trained = origin.get("trained_positions") if isinstance(origin, dict) else None
    end = loaded.config.max_positions or trained
    names = ("max_position_embeddings", "n_positions")
    return dict.fromkeys(names, end) if isinstance(end, int) else {}


def _windows(model: ModelConfig) -> dict[str, Any]:
    """Which layers have a sliding window, and the first of them (Qwen2)."""
    insides = [mixer_of(layer.mixers[0]) if layer.mixers else None for layer in model.layers]
    windows = [inside.window if isinstance(inside, WindowConfig) else None for inside in insides]
    sizes = {size for size in windows if size is not None}
    if len(sizes) > 1:
        raise _NoKey
    first = next((number for number, size in enumerate(windows) if size is not None), len(windows))
    kinds = [FULL if size is None else SLIDING for size in windows]
    attends = [not isinstance(part, ShortConvConfig) for layer in model.layers for part in layer.mixers]
    return {
        "use_sliding_window": bool(sizes),
        "sliding_window": next(iter(sizes), None),
        "max_window_layers": first,
        "layer_types": kinds if all(attends) else ["conv" if not own else FULL for own in attends],
    }


def _rope(model: ModelConfig) -> dict[str, Any]:
    """Rotary parameters, shared by all layers, and which layers rotate (SmolLM3)."""
    positions = [part.positions for layer in model.layers for part in layer.parts if isinstance(part, HeadsConfig)]
    rotary = [one for one in positions if isinstance(one, RotaryConfig)]
    if not rotary:
        return {}
    first, head_size = rotary[0], model.heads[0].head_size
    parameters = {"rope_theta": first.theta, **_scaling(first.scaling)}
    if first.size is not None:
        parameters[SHARE] = first.size / head_size
    return {"rope_parameters": parameters, "no_rope_layers": [int(one is not None) for one in positions]}


SCALINGS: dict[type[ScalingConfig], Callable[[Any], dict[str, Any]]] = {
    LinearScaling: lambda one: {"rope_type": "linear", "factor": one.factor},
    Llama3Scaling: lambda one: {
        "rope_type": "llama3",
        "factor": one.factor,
        "low_freq_factor": one.low_freq_factor,
        "high_freq_factor": one.high_freq_factor,
        LENGTH: one.original_max_positions,
    },
    YarnScaling: lambda one: {
        "rope_type": "yarn",
        "factor": one.factor,
        LENGTH: one.original_max_positions,
        "beta_fast": one.beta_fast,
        "beta_slow": one.beta_slow,
        "truncate": one.truncate,
        **({} if one.attention_factor is None else {"attention_factor": one.attention_factor}),
    },
}


def _scaling(scaling: ScalingConfig | None) -> Mapping[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    if type(scaling) not in SCALINGS:
        raise _NoKey
    return SCALINGS[type(scaling)](scaling)


def _convolutions(model: ModelConfig) -> dict[str, Any]:
    """Keys of LFM2's convolutions."""
    found = [part for layer in model.layers for part in layer.parts if isinstance(part, ShortConvConfig)]
    if not found:
        return {}
    return {"conv_L_cache": found[0].taps, "conv_bias": found[0].bias, "block_auto_adjust_ff_dim": False}

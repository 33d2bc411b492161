"""RecurrentGemma (Botev et al. 2024, arXiv 2404.07839): Griffin's recurrent blocks, and windows in every third layer.

Norms scale by 1 + w. Embeddings are multiplied by the square root of their size in bfloat16. The feed-forward has half
of intermediate_size. transformers' class returns no cache: a step equals its full forward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.checkpoints.importers.sources import CONVOLUTION, ONE_PLUS, Transform
from t2r_export.config.mixers import MixerConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig, RGLRUConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in ("hidden_act", "layer_types")},
        **PARTIAL,
        "vocab_size": 256000,
        "hidden_size": 2560,
        "intermediate_size": 7680,
        "num_hidden_layers": 26,
        "num_attention_heads": 10,
        "max_position_embeddings": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "block_types": ("recurrent", "recurrent", "attention"),
        "lru_width": None,
        "conv1d_width": 4,
        "attention_window_size": 2048,
        "logits_soft_cap": 30.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    refused={"layers_block_type": (None,), "embeddings_scale_by_sqrt_dim": (True,)},
    harmless="_block_types final_w_init_variance_scale hidden_act w_init_variance_scale",
    aliases={"sliding_window": "attention_window_size", "layer_types": "layers_block_type"},
)
KINDS = ("recurrent", "attention")


def _config(fields: Fields) -> ModelConfig:
    rope = fields.object("rope_parameters") or fields.object("rope_scaling")
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise fields.wrong("rope_parameters", "of the rope_type default", rope)
    root = torch.tensor(fields.size("hidden_size") ** 0.5, dtype=torch.bfloat16)
    return decoder(
        fields,
        _layers(fields),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=True,
        activation=fields.choice("hidden_activation", ACTIVATIONS),
        rope={"partial": 0.5},
        ffn_size=fields.size("intermediate_size", least=2) // 2,
        ffn_bias=True,
        embedding_scale=float(root),
        logit_softcap=fields.number("logits_soft_cap"),
    )


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    count, types = fields.layers("num_hidden_layers"), fields.get("block_types")
    if not isinstance(types, list | tuple) or not types or not all(kind in KINDS for kind in types):
        raise fields.wrong("block_types", f"names, each one of {', '.join(KINDS)}", types)
    heads, size = fields.size("num_attention_heads"), fields.size("lru_width", fields.size("hidden_size"))
    if size % heads:
        raise fields.wrong("lru_width", f"a multiple of num_attention_heads={heads}", size)
    recurrent = RGLRUConfig(
        size=size,
        blocks=heads,
        taps=fields.size("conv1d_width", least=2),
        activation=fields.choice("hidden_activation", ACTIVATIONS),
    )
    window = WindowConfig(fields.size("attention_window_size"), sinks=0)
    return tuple(recurrent if types[number % len(types)] == KINDS[0] else window for number in range(count))


BLOCK = f"{LAYER}.temporal_block"
OURS: dict[str, Any] = {
    **NAMES,
    "norm": "model.final_norm",
    **{f"{kind}.norm": f"{LAYER}.temporal_pre_norm" for kind in ("attention", "rg_lru")},
    **{f"attention.{part}": f"{BLOCK}.{part}_proj" for part in "qkvo"},
    **{f"rg_lru.{ours}": f"{BLOCK}.linear_{theirs}" for ours, theirs in (("x", "x"), ("y", "y"), ("o", "out"))},
    "rg_lru.conv": f"{BLOCK}.conv_1d",
    **{
        f"rg_lru.{ours}_{kind}": f"{BLOCK}.rg_lru.{theirs}_gate_{kind}"
        for ours, theirs in (("input", "input"), ("decay", "recurrent"))
        for kind in ("weight", "bias")
    },
    "rg_lru.rate": f"{BLOCK}.rg_lru.recurrent_param",
    "dense.norm": f"{LAYER}.channel_pre_norm",
    **{f"dense.{part}": f"{LAYER}.mlp_block.{part}_proj" for part in ("gate", "up", "down")},
}


def _transforms(_: ModelConfig) -> dict[str, Transform]:
    norms = ("norm", "attention.norm", "dense.norm")
    return {f"{BLOCK}.conv_1d.weight": CONVOLUTION, **{f"{OURS[name]}.weight": ONE_PLUS for name in norms}}


RECURRENT_GEMMA = importer(KEYS, _config, OURS, _transforms)

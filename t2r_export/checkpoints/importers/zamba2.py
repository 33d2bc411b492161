"""Zamba2 (Glorioso et al. 2024, arXiv 2411.15242): Mamba-2, and blocks of attention whose weights several layers share.

Each use of a block adds low-rank products to its projections. They are added to the weights here, so each layer has its
own weights. The block's output is added to the input of the layer's Mamba-2 and not to the residual stream.
"""

from __future__ import annotations

import re
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER
from t2r_export.checkpoints.importers.mamba2 import mixer_names, mixer_transforms
from t2r_export.checkpoints.importers.rotary import ROTARY, rotary
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import ConcatBlockConfig, Mamba2Config

PLAIN, HYBRID = "linear_attention", "hybrid"
KINDS = {PLAIN: PLAIN, "mamba": PLAIN, HYBRID: HYBRID}
DEPTHS = (6, 12, 18, 24, 30, 36, 42, 47, 51)  # default hybrid layers among 54
KEYS = keys(
    read={
        **ROTARY,
        "vocab_size": 32000,
        "hidden_size": 2560,
        "num_hidden_layers": 54,
        "layers_block_type": None,
        "max_position_embeddings": 4096,
        "intermediate_size": None,
        "hidden_act": "gelu",
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "time_step_min": 0.001,
        "add_bias_linear": False,
        "num_mem_blocks": 1,
        "use_shared_attention_adapter": False,
        "use_mem_rope": False,
        "rms_norm_eps": 1e-5,
        # implied by other keys; transformers' class uses a file's differing value
        **dict.fromkeys(("attention_head_dim", "attention_hidden_size", "hybrid_layer_ids", "mamba_headdim")),
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    # without tied embeddings transformers does not share the blocks either
    refused={"use_long_context": (False,), "tie_word_embeddings": (True,)},
    harmless="""
    adapter_rank chunk_size kv_channels num_logits_to_keep num_query_groups time_step_floor time_step_limit
    time_step_max use_conv_bias use_mamba_kernels use_mem_eff_path
    """,
    aliases={"layer_types": "layers_block_type", "head_dim": "attention_head_dim"},
)
EPS = 1e-5  # of Mamba-2's norm, independent of rms_norm_eps


def _config(fields: Fields) -> ModelConfig:
    norm = NormConfig("rms", fields.number("rms_norm_eps"))
    mamba2, block = _mamba2(fields, norm), _block(fields, norm.eps)
    types = _types(fields)
    implied: dict[str, Any] = {
        "attention_head_dim": block.head_size,
        "attention_hidden_size": 2 * fields.size("hidden_size"),
        "hybrid_layer_ids": [number for number, kind in enumerate(types) if kind == HYBRID],
        "mamba_headdim": mamba2.head_size,
    }
    for key, value in implied.items():
        if fields.get(key, value) != value:
            raise fields.wrong(key, f"absent or {value}, as other keys have it", fields.get(key))
    plain, hybrid = LayerConfig(parts=(mamba2,)), LayerConfig(parts=(block, mamba2))
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=fields.size("hidden_size"),
        layers=tuple(hybrid if kind == HYBRID else plain for kind in types),
        last_norm=norm,
        tied_head=True,
    )


def _types(fields: Fields) -> list[str]:
    implied = [HYBRID if number in DEPTHS else PLAIN for number in range(54)]
    return [KINDS[kind] for kind in fields.kinds("layers_block_type", KINDS, implied)]


def _mamba2(fields: Fields, norm: NormConfig) -> Mamba2Config:
    heads, groups, bias = fields.size("n_mamba_heads"), fields.size("mamba_ngroups"), fields.flag("add_bias_linear")
    inner = int(fields.number("mamba_expand") * fields.size("hidden_size"))
    if inner % heads:
        raise fields.wrong("n_mamba_heads", f"a divisor of {inner} channels", heads)
    return Mamba2Config(
        norm=norm,
        heads=heads,
        head_size=inner // heads,
        state_size=fields.size("mamba_d_state"),
        groups=groups,
        taps=fields.size("mamba_d_conv"),
        bias=bias,
        output_bias=bias,
        least_step=fields.number("time_step_min"),
        norm_groups=groups,
        norm_eps=EPS,
    )


def _block(fields: Fields, eps: float) -> ConcatBlockConfig:
    width, heads = 2 * fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if width % heads or heads % kv_heads:
        raise fields.wrong("num_attention_heads", f"a divisor of {width} and a multiple of {kv_heads}", heads)
    size, turns = width // heads, fields.flag("use_mem_rope")
    positions = rotary(fields, size)
    return ConcatBlockConfig(
        inside=SoftmaxConfig(),
        aside=True,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        qkv_bias=False,
        output_bias=False,
        scale=(size / 2) ** -0.5,
        positions=positions if turns else None,
        norm_eps=eps,
        size=fields.size("intermediate_size", 2 * width),
        activation=fields.choice("hidden_act", ACTIVATIONS),
        bias=fields.flag("add_bias_linear"),
    )


BLOCK = f"{LAYER}.shared_transformer"
MIXER = f"{LAYER}.mamba"
NAMES: dict[str, Any] = {
    "embedding": "model.embed_tokens",
    "norm": "model.final_layernorm",
    "head": "lm_head",
    "mamba2.norm": f"{LAYER}.input_layernorm",
    **mixer_names(MIXER),
    **{f"concat_block.{part}": f"{BLOCK}.self_attn.{part}_proj" for part in "qkvo"},
    "concat_block.input_norm": f"{BLOCK}.input_layernorm",
    "concat_block.ffn_norm": f"{BLOCK}.pre_ff_layernorm",
    **{f"concat_block.dense.{part}": f"{BLOCK}.feed_forward.gate_up_proj" for part in ("gate", "up")},
    "concat_block.dense.down": f"{BLOCK}.feed_forward.down_proj",
    "concat_block.out": f"{LAYER}.linear",
}
DECODER = f"{LAYER}.mamba_decoder"  # in a hybrid layer
OF_MIXER = [*(f"mamba.{name}" for name in ("A_log", "D", "dt_bias", "norm.weight")), "input_layernorm.weight"]
OF_MIXER += [f"mamba.{name}.{kind}" for name in ("in_proj", "conv1d", "out_proj") for kind in ("weight", "bias")]


def _uses(fields: Fields) -> list[tuple[int, int]]:
    """Each hybrid layer, and the first layer with the same block."""
    layers, blocks = [n for n, kind in enumerate(_types(fields)) if kind == HYBRID], fields.size("num_mem_blocks")
    return [(layer, layers[use % blocks]) for use, layer in enumerate(layers)]


def _repeated(fields: Fields) -> dict[str, str]:
    uses = _uses(fields)
    return {f"{BLOCK.format(layer)}.": f"{BLOCK.format(first)}." for layer, first in uses if layer != first}


def _sums(fields: Fields) -> dict[str, tuple[str, str]]:
    adapted = ["feed_forward.gate_up_proj"]
    if fields.flag("use_shared_attention_adapter"):
        adapted += [f"self_attn.{part}_proj" for part in "qkv"]
    found = {}
    for use, (layer, _) in enumerate(_uses(fields)):
        for name in adapted:
            where = f"{BLOCK.format(layer)}.{name}"
            own = where if name.startswith("feed") else re.sub(r"(\w)_proj$", r"linear_\1", where)
            outer, inner = (f"{own}_adapter_list.{use}.{place}.weight" for place in (1, 0))
            found[f"{where}.weight"] = outer, inner
    return found


ZAMBA2 = importer(
    KEYS,
    _config,
    NAMES,
    lambda _: mixer_transforms(MIXER),
    renamed={f"{DECODER}.{name}": f"{LAYER}.{name}" for name in OF_MIXER},
    repeated=_repeated,
    sums=_sums,
)

"""OPT (Zhang et al. 2022, arXiv 2205.01068): layer norms before the parts or after the sums, and learned positions,
whose table begins with two unused rows. Embeddings narrower than the model (OPT-350M) are refused."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import head_sizes
from t2r_export.checkpoints.importers.sources import skipped
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import UniformConfig

OFFSET = 2
KEYS = keys(
    read={
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": None,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "enable_bias": True,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 2,
    },
    refused={"layer_norm_elementwise_affine": (True,)},
    harmless="activation_dropout dropout init_std layerdrop",
)


def _config(fields: Fields) -> ModelConfig:
    width, bias, before = fields.size("hidden_size"), fields.flag("enable_bias"), fields.flag("do_layer_norm_before")
    heads, _, head_size = head_sizes(fields)
    narrow = fields.size("word_embed_proj_dim", width)
    if narrow != width:
        raise fields.wrong("word_embed_proj_dim", f"absent or hidden_size={width}, since no other is supported", narrow)
    removed = fields.flag("_remove_final_layer_norm")
    return UniformConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        ffn_size=fields.size("ffn_dim"),
        layers=(SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        norm_position="pre" if before else "post",
        last_norm=before and not removed,
        activation=fields.choice("activation_function", ACTIVATIONS),
        max_positions=fields.size("max_position_embeddings"),
        ffn_bias=bias,
        tied_head=fields.flag("tie_word_embeddings"),
        attention=HeadsConfig(heads=heads, kv_heads=heads, head_size=head_size, qkv_bias=bias, output_bias=bias),
    ).build()


LAYER = "model.decoder.layers.{}"
TABLE = "model.decoder.embed_positions"
NAMES = {
    "embedding": "model.decoder.embed_tokens",
    "positions.table": TABLE,
    "norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    **{f"attention.{norm}": f"{LAYER}.self_attn_layer_norm" for norm in ("norm", "norm_sum")},
    **{f"attention.{part}": f"{LAYER}.self_attn.{part}_proj" for part in "qkv"},
    "attention.o": f"{LAYER}.self_attn.out_proj",
    **{f"dense.{norm}": f"{LAYER}.final_layer_norm" for norm in ("norm", "norm_sum")},
    "dense.up": f"{LAYER}.fc1",
    "dense.down": f"{LAYER}.fc2",
}

OPT = importer(KEYS, _config, NAMES, lambda _: {f"{TABLE}.weight": skipped(OFFSET)})

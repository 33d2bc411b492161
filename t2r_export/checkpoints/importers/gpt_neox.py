"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745), as in Pythia: attention and feed-forward in parallel, each after
its own layer norm, and rotary positions for a part of each head.

Rows of the packed projection are grouped by head: its query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, decoder
from t2r_export.checkpoints.importers.sources import HEAD, Transform, permuted
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig

LLAMAS = ("head_dim", "layer_types", "num_key_value_heads", "rms_norm_eps", "rope_theta")  # differing Llama keys
PARTIAL = 0.25  # share of a head that rotates
KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in LLAMAS},
        "vocab_size": 50432,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
        "use_parallel_residual": True,
        "rotary_emb_base": 10000.0,
        "rotary_pct": None,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    # transformers uses these for the rotation only, or ignores them
    refused={"head_dim": (None,), "rope_theta": (None,), "num_key_value_heads": (None,)},
    absent={"rotary_pct": PARTIAL},
)


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    return decoder(
        fields,
        (SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        eps="layer_norm_eps",
        rope={"partial": PARTIAL, "theta": "rotary_emb_base", "share": "rotary_pct"},
        norm="layer",
        parallel=fields.flag("use_parallel_residual"),
        gated_ffn=False,
        ffn_bias=True,
    )


LAYER = "gpt_neox.layers.{}"
PACKED = f"{LAYER}.attention.query_key_value"
NAMES = {
    "embedding": "gpt_neox.embed_in",
    "norm": "gpt_neox.final_layer_norm",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.input_layernorm",
    **{f"attention.{part}": PACKED for part in "qkv"},
    "attention.o": f"{LAYER}.attention.dense",
    "dense.norm": f"{LAYER}.post_attention_layernorm",
    "dense.up": f"{LAYER}.mlp.dense_h_to_4h",
    "dense.down": f"{LAYER}.mlp.dense_4h_to_h",
}


def packed_by_heads(packed: str) -> Callable[[ModelConfig], dict[str, Transform]]:
    """Transforms of a packed projection with rows grouped by head: query, key and value."""

    def transforms(config: ModelConfig) -> dict[str, Transform]:
        of_heads = permuted((config.heads[0].heads, 3, -1), (1, 0, 2))
        return {f"{packed}.{kind}": of_heads for kind in ("weight", "bias")}

    return transforms


GPT_NEOX = importer(
    KEYS,
    _config,
    NAMES,
    packed_by_heads(PACKED),
    outside=frozenset({HEAD, "embed_out.weight"}),
    renamed={"embed_out.weight": HEAD},
    buffers=re.compile(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"),
)

"""StableLM (Stability AI 2024, arXiv 2402.17834): Llama with layer norms and rotary positions for a part of each head.

In some, attention and feed-forward are parallel after one norm. Norms of single heads are refused.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, decoder, importer, with_one_norm
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig

LLAMAS = ("head_dim", "layer_types", "rms_norm_eps")  # Llama's keys that it lacks
KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in LLAMAS},
        **PARTIAL,
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "use_qkv_bias": False,
        "use_parallel_residual": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    refused={"head_dim": (None,)},  # transformers uses it for the rotation only
)


def _config(fields: Fields) -> ModelConfig:
    parallel = fields.flag("use_parallel_residual")
    model = decoder(
        fields,
        (SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        qkv_bias=fields.flag("use_qkv_bias"),
        output_bias=False,
        eps="layer_norm_eps",
        rope={"partial": 0.25},
        norm="layer",
        parallel=parallel,
    )
    return with_one_norm(model) if parallel else model


STABLELM = importer(KEYS, _config)

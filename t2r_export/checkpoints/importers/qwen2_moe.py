"""Qwen1.5 and Qwen2 with experts (Yang et al. 2024, arXiv 2407.10671, section 2.2.2): Qwen2 whose feed-forwards are
experts in all or some layers, with a shared expert weighted by a sigmoid."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import (
    REFUSED,
    TRAINING,
    as_dense,
    beside,
    experts,
    sparse_layers,
    with_experts,
)
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, decoder, sliding_layers, window_of
from t2r_export.checkpoints.importers.llamas import QWEN2
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **QWEN2,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    },
    refused=REFUSED,
    harmless=f"{TRAINING} attention_bias mlp_bias",
    aliases={"num_local_experts": "num_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    most = fields.size("max_window_layers", least=0)
    layers = sliding_layers(fields, window_of(fields), lambda layer: layer % 2 == 0 and layer < most)
    each = experts(fields, "num_experts", "moe_intermediate_size", fields.flag("norm_topk_prob"))
    model = decoder(fields, layers, qkv_bias=fields.flag("qkv_bias"), output_bias=False)
    shared = fields.size("shared_expert_intermediate_size")
    return beside(model, each, sparse_layers(fields), size=shared, token_gate=True)


GATE = {"dense.token_gate": f"{LAYER}.mlp.shared_expert_gate"}
QWEN2_MOE = with_experts(KEYS, _config, GATE, renamed=as_dense("shared_expert"))

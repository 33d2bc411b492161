"""GLM-4.5 (GLM-4.5 Team 2025, arXiv 2508.06471): Llama whose feed-forwards, except the first, are experts that are
chosen by sigmoids and a bias (DeepSeek-V3, arXiv 2412.19437, eq. 12 to 16), and a shared expert.

dots.llm1 (rednote-hilab 2025, arXiv 2506.05767) is Qwen3 with these experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.experts import REFUSED, as_dense, experts, with_experts, with_moe
from t2r_export.checkpoints.importers.keys import Keys, keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, decoder, sliding_layers, window_of
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.model import ModelConfig

# keys of families with such experts, in one group
OF_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
OTHERS = {**REFUSED, "n_group": (1,), "topk_group": (1,)}
WEIGHTS_EPS = 1e-20  # constant in transformers' class
KEYS = keys(
    read={
        **DECODER,
        **PARTIAL,
        **OF_EXPERTS,
        "vocab_size": 151552,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "use_qk_norm": False,
    },
    refused=OTHERS,
    harmless="mlp_bias num_nextn_predict_layers",  # of layers that draft tokens
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
)
KEYS_OF_DOTS = keys(
    read={
        **DECODER,
        **OF_EXPERTS,
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "num_hidden_layers": 62,
        "num_key_value_heads": 32,
        "n_routed_experts": None,
        "n_shared_experts": None,
        "num_experts_per_tok": None,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "attention_bias": False,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    refused=OTHERS,
    harmless="mlp_bias",
    aliases={"num_local_experts": "n_routed_experts"},
)


def _glm4_moe(fields: Fields) -> ModelConfig:
    normed = fields.flag("use_qk_norm")
    return _by_sigmoids(fields, decoder(fields, output_bias=False, heads={"qk_norm": normed}, rope={"partial": 0.5}))


def _dots1(fields: Fields) -> ModelConfig:
    first = fields.size("max_window_layers", least=0)
    layers = sliding_layers(fields, window_of(fields), lambda layer: layer >= first)
    return _by_sigmoids(fields, decoder(fields, layers, heads={"qk_norm": True}))


def _by_sigmoids(fields: Fields, model: ModelConfig) -> ModelConfig:
    """The model with experts chosen by sigmoids."""
    normed, size = fields.flag("norm_topk_prob"), fields.size("moe_intermediate_size")
    each = experts(
        fields,
        "n_routed_experts",
        "moe_intermediate_size",
        normed,
        router="sigmoid",
        choice_bias=True,
        scale=fields.number("routed_scaling_factor"),
        eps=WEIGHTS_EPS if normed else 0.0,
    )
    dense = fields.size("first_k_dense_replace", least=0)
    sparse = [layer >= dense for layer in range(len(model.layers))]
    return with_moe(model, each, sparse, size=size * fields.size("n_shared_experts"))


def _importer(known: Keys, config: Callable[[Fields], ModelConfig]) -> Importer:
    """An importer with the names of such experts."""
    bias = {"moe.choice_bias": f"{LAYER}.mlp.gate.e_score_correction_bias"}
    return with_experts(known, config, bias, renamed=as_dense("shared_experts"), drafts=True)


GLM4_MOE = _importer(KEYS, _glm4_moe)
DOTS1 = _importer(KEYS_OF_DOTS, _dots1)

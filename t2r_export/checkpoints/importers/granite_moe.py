"""Granite 3 with experts (IBM 2024): Granite whose feed-forwards are mixtures of experts; `granitemoeshared` also has
a shared expert."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.experts import GATES_AND_UPS, beside, experts
from t2r_export.checkpoints.importers.granite import MULTIPLIERS, last_matrices, scales
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder
from t2r_export.config.model import ModelConfig

READ: dict[str, Any] = {
    **DECODER,
    **dict.fromkeys(MULTIPLIERS, 1.0),
    "attention_bias": False,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OTHERS: dict[str, Any] = {
    "refused": {**POSITIONS, "output_router_logits": (None, False)},
    "harmless": "router_aux_loss_coef",
}


def _config(fields: Fields, shared: int = 0) -> ModelConfig:
    return beside(decoder(fields, **scales(fields)), experts(fields), size=shared)


def _with_shared(fields: Fields) -> ModelConfig:
    return _config(fields, fields.size("shared_intermediate_size", least=0))


EXPERTS = f"{LAYER}.block_sparse_moe"
UP, DOWN = f"{EXPERTS}.input_linear.weight", f"{EXPERTS}.output_linear.weight"
OURS = {
    "moe.norm": f"{LAYER}.post_attention_layernorm",
    "moe.router": f"{EXPERTS}.router.layer",
    "moe.up": UP,
    "moe.down": DOWN,
}
NAMES_WITH_SHARED = {
    **NAMES,
    **OURS,
    **dict.fromkeys(("dense.gate", "dense.up"), f"{LAYER}.shared_mlp.input_linear"),
    "dense.down": f"{LAYER}.shared_mlp.output_linear",
}
LAST = ("self_attn.o_proj", "block_sparse_moe.output_linear")
GRANITE_MOE, GRANITE_MOE_SHARED = (
    importer(keys(read, **OTHERS), config, names, lambda _: {UP: GATES_AND_UPS}, factors=last_matrices(*last))
    for read, config, names, last in (
        (READ, _config, {**NAMES, **OURS}, LAST),
        ({**READ, "shared_intermediate_size": 0}, _with_shared, NAMES_WITH_SHARED, (*LAST, "shared_mlp.output_linear")),
    )
)

"""nanochat (Karpathy 2025): norms without weights, also of the embeddings and of q and k; squared ReLU, capped logits.

transformers rotates by the negative angle, which equals a rotation of swapped halves. It normalizes q and k after the
rotation, which equals normalization before it, since the norms have no weights.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    POSITIONS,
    cap,
    decoder,
    family,
    q_and_k,
)
from t2r_export.checkpoints.importers.sources import Transform, in_heads
from t2r_export.config.model import ModelConfig

READ = {
    "vocab_size": 50304,
    "hidden_size": 768,
    "intermediate_size": 8192,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "hidden_act": "relu2",
    "final_logit_softcapping": 15.0,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
OURS = {
    **NAMES,
    "embedding_norm": "model.embedding_norm",
    "dense.up": f"{LAYER}.mlp.fc1",
    "dense.down": f"{LAYER}.mlp.fc2",
}
WEIGHTS = {f"{theirs}.weight": 1.0 for ours, theirs in OURS.items() if "norm" in ours}


def _config(fields: Fields) -> ModelConfig:
    model = decoder(
        fields,
        heads={"qk_norm": True},
        gated_ffn=False,
        embedding_norm=True,
        logit_softcap=cap(fields, "final_logit_softcapping"),
    )
    rope = model.heads[0].rotary
    if rope is not None and rope.scaling is not None and rope.scaling.magnitude != 1:
        expected = "of a type that rotates and does not scale, since q and k are normalized after it"
        raise fields.wrong("rotary parameters", expected, rope.scaling.kind)
    return model


def _transforms(config: ModelConfig) -> dict[str, Transform]:
    size = config.heads[0].head_size
    return q_and_k(in_heads([*range(size // 2, size), *range(size // 2)]))


NANOCHAT = family(
    READ,
    _config,
    OURS,
    refused={**POSITIONS, "logits_soft_cap": (None, 15), "qkv_bias": (None, False)},  # keys of older versions
    harmless="mlp_bias",  # absent from transformers' class
    transforms=_transforms,
    constants=WEIGHTS,
)

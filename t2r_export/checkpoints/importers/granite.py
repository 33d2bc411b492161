"""Granite 3 (IBM 2024): Llama with multipliers of embeddings, scores, parts and logits.

A part's output is multiplied by residual_multiplier, which is folded into the part's last matrix here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import LAYER, decoder, family

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
READ = {
    **dict.fromkeys(MULTIPLIERS, 1.0),
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def scales(fields: Fields) -> dict[str, Any]:
    """The multipliers as arguments of `decoder`, except residual_multiplier."""
    return {
        "heads": {"scale": fields.number("attention_multiplier")},
        "embedding_scale": fields.number("embedding_multiplier"),
        "logit_scale": 1 / fields.number("logits_scaling"),
    }


def last_matrices(*ends: str) -> Callable[[Fields], dict[str, float]]:
    """`Importer.factors` of residual_multiplier, for the matrices of these names in each layer."""
    names = [f"{LAYER}.{end}.{kind}" for end in ends for kind in ("weight", "bias")]
    return lambda fields: dict.fromkeys(names, fields.number("residual_multiplier"))


GRANITE = family(
    READ,
    lambda fields: decoder(fields, **scales(fields)),
    factors=last_matrices("self_attn.o_proj", "mlp.down_proj"),
)

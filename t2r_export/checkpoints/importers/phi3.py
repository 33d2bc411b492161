"""Phi-3 (Abdin et al. 2024, arXiv 2404.14219): Llama with packed projections, in which the rows of q, k and v follow
each other, and a window in some models. Older files call longrope su or yarn."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer
from t2r_export.checkpoints.importers.mistral import layers
from t2r_export.checkpoints.importers.rotary import LENGTH, PARTIAL, longrope
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **PARTIAL,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        LENGTH: 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
    refused=POSITIONS,
    harmless="attention_bias embd_pdrop mlp_bias resid_pdrop",  # two are absent from transformers' class
)
OURS = {
    **NAMES,
    **{f"attention.{part}": f"{LAYER}.self_attn.qkv_proj" for part in "qkv"},
    **{f"dense.{part}": f"{LAYER}.mlp.gate_up_proj" for part in ("gate", "up")},
}


def _config(fields: Fields) -> ModelConfig:
    return decoder(
        fields,
        layers(fields),
        qkv_bias=False,
        rope={"partial": 1.0, "types": {"su": longrope, "yarn": longrope}},
    )


PHI3 = importer(KEYS, _config, OURS)

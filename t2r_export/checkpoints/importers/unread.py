"""Families of checkpoints that were studied and are not read, and what of them no part of ours computes."""

from __future__ import annotations

_LATENT = "latent attention (MLA), which stores low-rank keys and values"
# model_type -> what it has
UNREAD = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gemma3n": "embeddings of each layer, and streams that layers predict and correct (AltUp)",
    "kimi_linear": f"{_LATENT}, in each fourth layer; its other layers are parts of the kind kda",
    "xlstm": "exponential gates with a running maximum",
    "zamba": "Mamba's state spaces with heads, and weights that layers share",
}

"""Gated linear attention (Yang et al. 2024, arXiv 2312.06635), as flash-linear-attention saves it."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.fla import ATTENTION, family_keys, importer, of_width, own_keys, stacked, taps
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import GLAConfig

# of GLA and of RetNet
READ: dict[str, Any] = {
    "num_heads": 4,
    "num_kv_heads": None,
    "expand_k": 0.5,
    "expand_v": 1.0,
    "use_short_conv": False,
    "use_output_gate": True,
}
REFUSED: dict[str, tuple[Any, ...]] = {"feature_map": (None,), "elementwise_affine": (True,)}
KEYS = family_keys(READ, {**REFUSED, "clamp_min": (None,), "use_gk": (True,), "use_gv": (False,)})
FUSED, APART = (f"{ATTENTION}.{name}.weight" for name in ("g_norm_swish_gate", "g_norm"))
NAMES = {"z": "g_proj", "norm_weight": "g_norm_swish_gate.weight"}
RENAMED = {APART: FUSED}  # without fuse_norm, and without an output gate


def shared(fields: Fields) -> dict[str, Any]:
    """Options that the parts of GLA and RetNet share."""
    own_keys(fields)
    return {
        **of_width(fields),
        "taps": taps(fields),
        "norm_eps": fields.number("norm_eps"),
        "gate": "silu" if fields.flag("use_output_gate") else "none",
    }


def _config(fields: Fields) -> ModelConfig:
    return stacked(fields, GLAConfig(**shared(fields)))


GLA = importer(KEYS, _config, "gla", {**NAMES, "a1": "gk_proj.0", "a2": "gk_proj.1"}, RENAMED)

"""Gated delta nets (Yang et al. 2024, arXiv 2412.06464), as flash-linear-attention saves them."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.delta_net import NAMES, shared
from t2r_export.checkpoints.importers.fla import family_keys, importer, of_heads, stacked
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import GatedDeltaConfig

READ: dict[str, Any] = {
    "num_hidden_layers": 21,
    "num_heads": 6,
    "num_v_heads": None,
    "head_dim": 256,
    "expand_v": 2.0,
    "use_gate": True,
    "output_gate_activation": "swish",
    "use_short_conv": True,
    "allow_neg_eigval": False,
}
GATES = {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"}


def _config(fields: Fields) -> ModelConfig:
    opening = fields.choice("output_gate_activation", GATES)
    gate = opening if fields.flag("use_gate") else "none"
    return stacked(fields, GatedDeltaConfig(**of_heads(fields), **shared(fields), gate=gate))


NAMES_OF_GATED = {**NAMES, "a": "a_proj", "A_log": "A_log", "dt_bias": "dt_bias"}
GATED_DELTANET = importer(family_keys(READ), _config, "gated_delta", NAMES_OF_GATED)

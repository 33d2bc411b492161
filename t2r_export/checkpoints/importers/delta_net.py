"""DeltaNet (Yang et al. 2024, arXiv 2406.06484), as flash-linear-attention saves it."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.fla import family_keys, importer, of_width, stacked, taps
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import DeltaNetConfig

READ: dict[str, Any] = {
    "num_heads": 16,
    "expand_k": 1.0,
    "expand_v": 1.0,
    "use_gate": False,
    "use_short_conv": True,
    "allow_neg_eigval": False,
}
KEYS = family_keys(
    READ,
    {"qk_norm": ("l2",), "qk_activation": ("silu",), "use_beta": (True,), "use_output_norm": (True,)},
)
NAMES = {"z": "g_proj", "b": "b_proj", "norm_weight": "o_norm.weight"}


def shared(fields: Fields) -> dict[str, Any]:
    """Options that the parts of this family and of gated delta nets share."""
    return {
        "taps": taps(fields),
        "norm_eps": fields.number("norm_eps"),
        "allow_neg_eigval": fields.flag("allow_neg_eigval"),
    }


def _config(fields: Fields) -> ModelConfig:
    gate = "silu" if fields.flag("use_gate") else "none"
    return stacked(fields, DeltaNetConfig(**of_width(fields), **shared(fields), gate=gate))


DELTA_NET = importer(KEYS, _config, "delta_net", NAMES)

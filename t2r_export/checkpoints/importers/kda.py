"""Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692), as flash-linear-attention saves it."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.delta_net import shared
from t2r_export.checkpoints.importers.fla import family_keys, importer, of_heads, stacked
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import KDAConfig

READ: dict[str, Any] = {
    "num_heads": 16,
    "num_v_heads": None,
    "head_dim": 128,
    "expand_v": 1.0,
    "use_short_conv": True,
    "allow_neg_eigval": False,
}
KEYS = family_keys(READ, {"safe_gate": (False,), "lower_bound": (None,)})
NAMES = {
    "b": "b_proj",
    **{f"a{place + 1}": f"f_proj.{place}" for place in (0, 1)},
    **{f"z{place + 1}": f"g_proj.{place}" for place in (0, 1)},
    **{name: name for name in ("A_log", "dt_bias")},
    "norm_weight": "o_norm.weight",
}


def _config(fields: Fields) -> ModelConfig:
    sizes = of_heads(fields)
    rank = sizes["value_size"]
    return stacked(fields, KDAConfig(**sizes, **shared(fields), decay_rank=rank, gate_rank=rank, gate_bias=True))


KDA = importer(KEYS, _config, "kda", NAMES)

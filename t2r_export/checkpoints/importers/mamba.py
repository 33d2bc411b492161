"""Mamba (Gu and Dao 2023, arXiv 2312.00752), and FalconMamba (Zuo et al. 2024, arXiv 2410.05355) with norms inside."""

from __future__ import annotations

import math
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.mamba2 import family, stacked
from t2r_export.checkpoints.importers.sources import CONVOLUTION, TRANSPOSED, Transform
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MambaConfig

READ: dict[str, Any] = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
    "expand": 2,
    "intermediate_size": None,
    "time_step_rank": "auto",
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
HARMLESS = """
residual_in_fp32 time_step_floor time_step_init_scheme time_step_max time_step_min
time_step_scale use_associative_scan use_mambapy
"""


def step_rank(fields: Fields, key: str) -> int:
    """The rank of dt's projection; auto: a sixteenth of the width."""
    return math.ceil(fields.size("hidden_size") / 16) if fields.get(key) == "auto" else fields.size(key)


def _config(fields: Fields) -> ModelConfig:
    fields.choice("hidden_act", {"silu": "silu"})
    part = MambaConfig(
        size=fields.size("intermediate_size", int(fields.number("expand") * fields.size("hidden_size"))),
        state_size=fields.size("state_size"),
        step_rank=step_rank(fields, "time_step_rank"),
        taps=fields.size("conv_kernel", least=2),
        conv_bias=fields.flag("use_conv_bias"),
        bias=fields.flag("use_bias"),
        inner_norm_eps=fields.number("mixer_rms_eps") if fields.reads("mixer_rms_eps") else None,
    )
    return stacked(fields, part)


def mixer_names(where: str) -> dict[str, str]:
    """Names of a part's tensors in the module `where`, for `named`."""
    modules = {"project": "in_proj", "conv": "conv1d", "select": "x_proj", "dt": "dt_proj", "o": "out_proj"}
    weights = {"dt_bias": "dt_proj.bias", "A_log": "A_log", "D": "D"}
    return {f"mamba.{ours}": f"{where}.{theirs}" for ours, theirs in {**modules, **weights}.items()}


def mixer_transforms(where: str) -> dict[str, Transform]:
    """Transforms of a part's tensors, for `named`."""
    return {f"{where}.conv1d.weight": CONVOLUTION, f"{where}.A_log": TRANSPOSED}


MAMBA, FALCON_MAMBA = (
    family(
        keys({**READ, **more}, harmless=HARMLESS, noted="rescale_prenorm_residual"),
        _config,
        "mamba",
        mixer_names,
        mixer_transforms,
    )
    for more in ({}, {"mixer_rms_eps": 1e-6})
)

"""Mamba (Gu and Dao 2023, arXiv 2312.00752), and FalconMamba (Zuo et al. 2024, arXiv 2410.05355) with norms inside."""

from __future__ import annotations

import math
import re
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer, tied_head
from t2r_export.checkpoints.importers.keys import Keys, keys
from t2r_export.checkpoints.importers.sources import CONVOLUTION, TRANSPOSED, named
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MambaConfig
from t2r_export.config.uniform import NoFeedForward, UniformConfig

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
rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_init_scheme time_step_max time_step_min
time_step_scale use_associative_scan use_mambapy
"""


def _config(fields: Fields) -> ModelConfig:
    width, eps = fields.size("hidden_size"), fields.number("layer_norm_epsilon")
    fields.choice("hidden_act", {"silu": "silu"})
    automatic = fields.get("time_step_rank") == "auto"
    part = MambaConfig(
        size=fields.size("intermediate_size", int(fields.number("expand") * width)),
        state_size=fields.size("state_size"),
        step_rank=math.ceil(width / 16) if automatic else fields.size("time_step_rank"),
        taps=fields.size("conv_kernel", least=2),
        conv_bias=fields.flag("use_conv_bias"),
        bias=fields.flag("use_bias"),
        inner_norm_eps=fields.number("mixer_rms_eps") if fields.reads("mixer_rms_eps") else None,
    )
    count = fields.layers("num_hidden_layers")
    return UniformConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        layers=(part,) * count,
        feed_forwards=(NoFeedForward(),) * count,
        norm="rms",
        norm_eps=eps,
        position="none",
        tied_head=fields.flag("tie_word_embeddings"),
    ).build()


LAYER = "backbone.layers.{}"
MIXER = f"{LAYER}.mixer"
NAMES: dict[str, Any] = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "head": "lm_head",
    "mamba.norm": f"{LAYER}.norm",
    "mamba.project": f"{MIXER}.in_proj",
    "mamba.conv": f"{MIXER}.conv1d",
    "mamba.select": f"{MIXER}.x_proj",
    "mamba.dt": f"{MIXER}.dt_proj",
    "mamba.dt_bias": f"{MIXER}.dt_proj.bias",
    "mamba.A_log": f"{MIXER}.A_log",
    "mamba.D": f"{MIXER}.D",
    "mamba.o": f"{MIXER}.out_proj",
}
TRANSFORMS = {f"{MIXER}.conv1d.weight": CONVOLUTION, f"{MIXER}.A_log": TRANSPOSED}


def _importer(known: Keys) -> Importer:
    return Importer(
        keys=known,
        config=_config,
        sources=lambda model, weights: named(model, weights, NAMES, TRANSFORMS),
        prefix="backbone.",
        buffers=re.compile(r"(?!)"),  # none
        copies=tied_head("backbone.embeddings.weight"),
    )


MAMBA = _importer(keys(READ, harmless=HARMLESS))
FALCON_MAMBA = _importer(keys({**READ, "mixer_rms_eps": 1e-6}, harmless=HARMLESS))

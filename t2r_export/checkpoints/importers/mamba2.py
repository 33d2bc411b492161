"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): one state-space part per layer, and nothing else.

Families with such parts among others use this module too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer, importer
from t2r_export.checkpoints.importers.keys import Keys, keys
from t2r_export.checkpoints.importers.sources import CONVOLUTION, Transform
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import Mamba2Config, PartConfig
from t2r_export.config.uniform import NoFeedForward, UniformConfig
from t2r_export.config.validation import finite

INFINITY = {"__float__": "Infinity"}  # as transformers 5 writes it; before, it wrote Infinity
KEYS = keys(
    read={
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "expand": 2,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": (0.0, float("inf")),
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    # transformers' class ignores the last two
    harmless="""
    chunk_size residual_in_fp32 time_step_floor time_step_max time_step_min time_step_rank
    norm_before_gate rms_norm
    """,
    noted="rescale_prenorm_residual",
)


# keys of a family with such parts among others, for `part_of`
PARTS: dict[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": (0.0, float("inf")),
}


def _config(fields: Fields) -> ModelConfig:
    fields.choice("hidden_act", {"silu": "silu"})
    bias, groups = fields.flag("use_bias"), fields.size("n_groups")
    part = Mamba2Config(
        **heads(fields, "num_heads", "head_dim", fields.number("expand") * fields.size("hidden_size")),
        state_size=fields.size("state_size"),
        groups=groups,
        taps=fields.size("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias"),
        bias=bias,
        output_bias=bias,
        norm_groups=groups,
        norm_eps=fields.number("layer_norm_epsilon"),
        **time_steps(fields),
    )
    return stacked(fields, part)


def stacked(fields: Fields, part: PartConfig) -> ModelConfig:
    """A model with one such part per layer, and nothing else."""
    count = fields.layers("num_hidden_layers")
    return UniformConfig(
        vocab_size=fields.size("vocab_size"),
        width=fields.size("hidden_size"),
        layers=(part,) * count,
        feed_forwards=(NoFeedForward(),) * count,
        norm="rms",
        norm_eps=fields.number("layer_norm_epsilon"),
        position="none",
        tied_head=fields.flag("tie_word_embeddings"),
    ).build()


def part_of(fields: Fields, inner: float, eps: float, **others: Any) -> Mamba2Config:
    """A part with `inner` channels, from the keys that begin with mamba_; `others` are fields of its config."""
    fields.choice("hidden_act", {"silu": "silu"})
    groups, bias = fields.size("mamba_n_groups"), fields.flag("mamba_proj_bias")
    values: dict[str, Any] = {
        **heads(fields, "mamba_n_heads", "mamba_d_head", inner),
        "state_size": fields.size("mamba_d_state"),
        "groups": groups,
        "taps": fields.size("mamba_d_conv"),
        "conv_bias": fields.flag("mamba_conv_bias"),
        "bias": bias,
        "output_bias": bias,
        "norm_groups": groups,
        "norm_eps": eps,
        **time_steps(fields),
    }
    return Mamba2Config(**{**values, **others})


def heads(fields: Fields, count: str, size: str, inner: float) -> dict[str, Any]:
    """Heads of a part, from the keys `count` and `size`, with `inner` channels in total."""
    number = fields.size(count)
    each = int(inner) // number if fields.get(size) == "auto" else fields.size(size)
    if number * each != int(inner):
        raise fields.wrong(count, f"a number of heads of {each} with {int(inner)} channels in all", number)
    return {"heads": number, "head_size": each}


def time_steps(fields: Fields) -> dict[str, Any]:
    """Limits of dt, as `Mamba2Config` has them."""
    limit = fields.get("time_step_limit", (0.0, float("inf")))
    limits = [float("inf") if x == INFINITY else x for x in limit] if isinstance(limit, list | tuple) else []
    numbers = all(finite(x) or x == float("inf") for x in limits)
    if len(limits) != 2 or not numbers or not max(0.0, limits[0]) < limits[1]:
        raise fields.wrong("time_step_limit", "two numbers, the second above the first and above 0", limit)
    low, high = limits
    return {"least_step": max(0.0, float(low)), "largest_step": None if high == float("inf") else float(high)}


def mixer_names(where: str) -> dict[str, str]:
    """Names of a part's tensors in the module `where`, for `named`."""
    same = {f"mamba2.{name}": f"{where}.{name}" for name in ("A_log", "dt_bias", "D")}
    modules = {"project": "in_proj", "conv": "conv1d", "o": "out_proj"}
    return {
        **same,
        **{f"mamba2.{ours}": f"{where}.{theirs}" for ours, theirs in modules.items()},
        "mamba2.norm_weight": f"{where}.norm.weight",
    }


def mixer_transforms(where: str) -> dict[str, Transform]:
    """Transforms of a part's tensors, for `named`."""
    return {f"{where}.conv1d.weight": CONVOLUTION}


LAYER = "backbone.layers.{}"


def family(
    known: Keys,
    config: Callable[[Fields], ModelConfig],
    kind: str,
    names: Callable[[str], dict[str, str]],
    transforms: Callable[[str], dict[str, Transform]],
) -> Importer:
    """An importer of models of `stacked`. Args: kind: the part's; names, transforms: its `mixer_names` and
    `mixer_transforms`."""
    ours = {
        "embedding": "backbone.embeddings",
        "norm": "backbone.norm_f",
        "head": "lm_head",
        f"{kind}.norm": f"{LAYER}.norm",
        **names(f"{LAYER}.mixer"),
    }
    return importer(known, config, ours, lambda _: transforms(f"{LAYER}.mixer"))


MAMBA2 = family(KEYS, _config, "mamba2", mixer_names, mixer_transforms)

"""RWKV-5.2 "Eagle" (Peng et al. 2024, arXiv 2404.05892) with the names of rwkv.cpp's files, which `ggmf` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.importers.sources import Transform
from t2r_export.config.layer import LayerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import ChannelMixConfig, RWKV5Config
from t2r_runtime.errors import UserError

BLOCK = "blocks.{}"
EAGLE = "blocks.0.att.time_mix_g"  # absent from other versions
DECAY = "blocks.0.att.time_decay"
EAGLE_NAMES: dict[str, str] = {
    "rwkv5.norm": f"{BLOCK}.ln1",
    "channel_mix.norm": f"{BLOCK}.ln2",
    "rwkv5.r": f"{BLOCK}.att.receptance",
    "rwkv5.k": f"{BLOCK}.att.key",
    "rwkv5.v": f"{BLOCK}.att.value",
    "rwkv5.g": f"{BLOCK}.att.gate",
    "rwkv5.o": f"{BLOCK}.att.output",
    "rwkv5.decay": f"{BLOCK}.att.time_decay",
    "rwkv5.u": f"{BLOCK}.att.time_faaaa",
    **{f"rwkv5.x_{part}": f"{BLOCK}.att.time_mix_{part}" for part in "rkvg"},
    **{f"rwkv5.norm_{kind}": f"{BLOCK}.att.ln_x.{kind}" for kind in ("weight", "bias")},
    **{f"channel_mix.x_{part}": f"{BLOCK}.ffn.time_mix_{part}" for part in "rk"},
    "channel_mix.up": f"{BLOCK}.ffn.key",
    "channel_mix.down": f"{BLOCK}.ffn.value",
    "channel_mix.gate": f"{BLOCK}.ffn.receptance",
}
# stored: the share of the token (D); ours: that of the previous token (1, D)
SHARE = Transform(lambda x: 1 - x[None], lambda x: 1 - x[0])
# stored: the decay (H, K, 1); ours: ω of exp(-exp(ω))
DECAYS = Transform(lambda x: _exponents(x[..., 0]), lambda x: torch.exp(-torch.exp(x))[..., None])
EAGLE_TRANSFORMS = {
    **{f"{BLOCK}.att.time_mix_{part}": SHARE for part in "rkvg"},
    **{f"{BLOCK}.ffn.time_mix_{part}": SHARE for part in "rk"},
    f"{BLOCK}.att.time_decay": DECAYS,
    f"{BLOCK}.att.time_faaaa": Transform(lambda x: x[..., 0], lambda x: x[..., None]),
}


def _exponents(decays: Tensor) -> Tensor:
    """ω of exp(-exp(ω)); decays that float32 rounds to 0 or 1 become the nearest ones between."""
    if not bool(((decays >= 0) & (decays <= 1)).all()):
        raise UserError("decays from 0 to 1 in time_decay", "others", "download the file again")
    return torch.log(-torch.log(decays.clamp(torch.finfo(decays.dtype).tiny, 1 - torch.finfo(torch.float32).eps / 2)))


def eagle_config(said: Mapping[str, Any], heads: int) -> ModelConfig:
    """The model of checked config.json keys, with `heads` heads."""
    norm = NormConfig("layer", 1e-5)
    part = RWKV5Config(norm=norm, heads=heads, head_size=max(1, said["hidden_size"] // max(heads, 1)))
    mix = ChannelMixConfig(said["intermediate_size"], gated=True, norm=norm)
    return ModelConfig(
        vocab_size=said["vocab_size"],
        width=said["hidden_size"],
        layers=(LayerConfig(parts=(part, mix)),) * said["num_hidden_layers"],
        embedding_norm=norm,
        last_norm=norm,
        tied_head=False,
    )

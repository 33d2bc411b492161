"""The kinds of parts of a layer: one config each, listed in `PARTS`. Imports without torch."""

from __future__ import annotations

from t2r_export.config.parts.attention import (
    AttentionConfig,
    CrossConfig,
    EncoderAttentionConfig,
    InsideConfig,
    JointConfig,
)
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.concat_block import ConcatBlockConfig
from t2r_export.config.parts.feed_forward import DenseConfig
from t2r_export.config.parts.gated_delta import DeltaNetConfig, GatedDeltaConfig, KDAConfig
from t2r_export.config.parts.linear import LinearPartConfig
from t2r_export.config.parts.mamba import MambaConfig
from t2r_export.config.parts.mamba2 import Mamba2Config
from t2r_export.config.parts.moe import MoEConfig
from t2r_export.config.parts.retention import GLAConfig, RetentionConfig
from t2r_export.config.parts.rg_lru import RGLRUConfig
from t2r_export.config.parts.rwkv7 import ChannelMixConfig, RWKV7Config
from t2r_export.config.parts.short_conv import ShortConvConfig
from t2r_export.config.tagged import Entry, resolve

MODEL = "t2r_export.model.parts"
LAB = "t2r_export.lab"
PARTS: dict[str, Entry[PartConfig]] = {
    entry.config.kind: entry
    for entry in (
        Entry(AttentionConfig, f"{MODEL}.attention:Attention"),
        Entry(EncoderAttentionConfig, f"{MODEL}.attention:Attention"),
        Entry(CrossConfig, f"{MODEL}.cross:Cross"),
        Entry(resolve(f"{LAB}.config.merged:MergedConfig"), f"{LAB}.merged:Merged"),
        Entry(ConcatBlockConfig, f"{MODEL}.concat_block:ConcatBlock"),
        Entry(resolve(f"{LAB}.config.recurrent:LSTMConfig"), f"{LAB}.recurrent:LSTM"),
        Entry(resolve(f"{LAB}.config.recurrent:GRUConfig"), f"{LAB}.recurrent:GRU"),
        Entry(resolve(f"{LAB}.config.average:AverageConfig"), f"{LAB}.average:Average"),
        Entry(DeltaNetConfig, f"{MODEL}.gated_delta:DeltaNet"),
        Entry(GatedDeltaConfig, f"{MODEL}.gated_delta:GatedDelta"),
        Entry(KDAConfig, f"{MODEL}.gated_delta:KDA"),
        Entry(GLAConfig, f"{MODEL}.retention:GLA"),
        Entry(RetentionConfig, f"{MODEL}.retention:Retention"),
        Entry(MambaConfig, f"{MODEL}.mamba:Mamba"),
        Entry(Mamba2Config, f"{MODEL}.mamba2:Mamba2"),
        Entry(RGLRUConfig, f"{MODEL}.rg_lru:RGLRU"),
        Entry(RWKV7Config, f"{MODEL}.rwkv7:RWKV7"),
        Entry(ChannelMixConfig, f"{MODEL}.rwkv7:ChannelMix"),
        Entry(resolve(f"{LAB}.config.s4d:S4DConfig"), f"{LAB}.s4d:S4D"),
        Entry(resolve(f"{LAB}.config.light_conv:LightConvConfig"), f"{LAB}.light_conv:LightConv"),
        Entry(ShortConvConfig, f"{MODEL}.short_conv:ShortConv"),
        Entry(DenseConfig, f"{MODEL}.dense:Dense"),
        Entry(MoEConfig, f"{MODEL}.moe:MoE"),
        Entry(resolve(f"{LAB}.config.product_key:ProductKeyConfig"), f"{LAB}.product_key:ProductKey"),
    )
}

__all__ = [
    "PARTS",
    "AttentionConfig",
    "ChannelMixConfig",
    "ConcatBlockConfig",
    "CrossConfig",
    "DeltaNetConfig",
    "DenseConfig",
    "EncoderAttentionConfig",
    "GLAConfig",
    "GatedDeltaConfig",
    "InsideConfig",
    "JointConfig",
    "KDAConfig",
    "LinearPartConfig",
    "Mamba2Config",
    "MambaConfig",
    "MoEConfig",
    "PartConfig",
    "RGLRUConfig",
    "RWKV7Config",
    "RetentionConfig",
    "ShortConvConfig",
]

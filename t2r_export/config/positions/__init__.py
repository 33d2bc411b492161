"""Position encodings: one config per kind, in one table.

Imports without torch. A new kind is a config here, a class in t2r_export.model.positions, and a line in `POSITIONS`.
"""

from __future__ import annotations

from t2r_export.config.positions.alibi import AlibiConfig
from t2r_export.config.positions.base import PositionConfig
from t2r_export.config.positions.embedded import LearnedConfig, SinusoidalConfig
from t2r_export.config.positions.relative import T5Config
from t2r_export.config.positions.rotary import RotaryConfig
from t2r_export.config.tagged import Entry, resolve

MODEL = "t2r_export.model.positions"
LAB = "t2r_export.lab"
POSITIONS: dict[str, Entry[PositionConfig]] = {
    entry.config.kind: entry
    for entry in (
        Entry(LearnedConfig, f"{MODEL}.embedded:LearnedPositions"),
        Entry(SinusoidalConfig, f"{MODEL}.embedded:SinusoidalPositions"),
        Entry(RotaryConfig, f"{MODEL}.rotary:Rotary"),
        Entry(AlibiConfig, f"{MODEL}.alibi:Alibi"),
        Entry(T5Config, f"{MODEL}.t5:T5"),
        Entry(resolve(f"{LAB}.config.positions:ShawConfig"), f"{LAB}.shaw:Shaw"),
        Entry(resolve(f"{LAB}.config.positions:TransformerXLConfig"), f"{LAB}.transformer_xl:TransformerXL"),
        Entry(resolve(f"{LAB}.config.positions:DATransformerConfig"), f"{LAB}.da_transformer:DATransformer"),
    )
}

__all__ = [
    "POSITIONS",
    "AlibiConfig",
    "LearnedConfig",
    "PositionConfig",
    "RotaryConfig",
    "SinusoidalConfig",
    "T5Config",
]

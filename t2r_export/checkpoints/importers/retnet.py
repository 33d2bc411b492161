"""RetNet (Sun et al. 2023, arXiv 2307.08621), as flash-linear-attention saves it: rotary positions without xpos
scaling, and an RMS norm per head."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.fla import family_keys, importer, stacked
from t2r_export.checkpoints.importers.gla import NAMES, READ, REFUSED, RENAMED, shared
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import RetentionConfig
from t2r_export.config.positions import RotaryConfig

KEYS = family_keys({**READ, "num_heads": 8, "expand_k": 1.0, "expand_v": 2.0, "hidden_ratio": 2}, REFUSED)


def _config(fields: Fields) -> ModelConfig:
    return stacked(fields, RetentionConfig(**shared(fields), positions=RotaryConfig()))


RETNET = importer(KEYS, _config, "retention", NAMES, RENAMED)

"""Pegasus (Zhang et al. 2020, arXiv 1912.08777): Marian with a norm before each part, and a last one in each stack."""

from __future__ import annotations

from t2r_export.checkpoints.importers.bart import ALIASES, HARMLESS, READ, importer, refused, translator
from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={**READ, "eos_token_id": 1, "decoder_start_token_id": 0},
    refused=refused(pre_norm=True, embedding_norm=False, fixed_positions=True),
    harmless=HARMLESS,
    aliases=ALIASES,
)


def _config(fields: Fields) -> ModelConfig:
    return translator(fields, position="sinusoidal", norm_position="pre", last_norm=True)


PEGASUS = importer(KEYS, _config, sines=True)

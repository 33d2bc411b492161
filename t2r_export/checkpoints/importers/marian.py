"""Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344): BART with sinusoidal positions and no norm of the embeddings.

Its sources may have their own vocabulary.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.bart import ALIASES, HARMLESS, READ, importer, refused, translator
from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **READ,
        "vocab_size": 58101,
        "decoder_vocab_size": None,
        "share_encoder_decoder_embeddings": True,
        "eos_token_id": 0,
        "decoder_start_token_id": 58100,
    },
    refused=refused(pre_norm=False, embedding_norm=False, fixed_positions=True),
    harmless=HARMLESS,
    aliases=ALIASES,
)


def _config(fields: Fields) -> ModelConfig:
    shared = fields.flag("share_encoder_decoder_embeddings")
    if shared and fields.get("decoder_vocab_size") not in (None, fields.get("vocab_size")):
        size = fields.get("decoder_vocab_size")
        raise fields.wrong("decoder_vocab_size", "vocab_size, since the stacks share their table", size)
    return translator(fields, own_source=not shared, position="sinusoidal", norm_position="post", last_norm=False)


MARIAN = importer(KEYS, _config, sines=True)

"""Our own folders for transformers (`t2r save MODEL FOLDER --as transformers`): a config and weights by our names.

`config.json` has the model's config and provenance, as in a model.pt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.keys import Keys, words
from t2r_export.checkpoints.importers.sources import Source
from t2r_export.checkpoints.plain import saved_config
from t2r_export.checkpoints.weights import EMBEDDING, HEAD
from t2r_export.config.model import VERSION, ModelConfig

MODEL_TYPE = "t2r"
RECORD = "t2r"  # key of the data that a model.pt stores
KEYS = Keys(
    read={
        "model_type": None,
        "quantization_config": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "max_position_embeddings": None,
        RECORD: None,
    },
    refused={},
    # keys that other programs need, and that transformers adds when it saves the folder again
    harmless=words(
        """
        architectures auto_map dtype hidden_size is_decoder num_hidden_layers pad_token_id tie_word_embeddings
        torch_dtype transformers_version use_cache vocab_size
        """
    ),
    aliases={},
    noted=frozenset(),
    absent={},
)


def _record(fields: Fields) -> dict[str, Any]:
    """The folder's data about the model."""
    record = fields.object(RECORD)
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise Fields(record, f"{RECORD} in {fields.where}").wrong(
            "version", str(VERSION), version, "use the version of t2r that wrote it"
        )
    return record


def _config(fields: Fields) -> ModelConfig:
    return saved_config(_record(fields).get("config", {}), f"{RECORD} of {fields.where}", "save the folder again")


def _provenance(fields: Fields) -> dict[str, Any]:
    return Fields(_record(fields), f"{RECORD} in {fields.where}").object("provenance")


def _sources(model: ModelConfig, weights: Iterable[str]) -> dict[str, Source]:
    return {name: Source((name,)) for name in weights}


T2R = Importer(
    keys=KEYS,
    config=_config,
    sources=_sources,
    prefix="",
    outside=frozenset(),
    copies=lambda config: {HEAD: EMBEDDING} if config.tied_head else {},
    provenance=_provenance,
)

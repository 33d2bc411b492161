"""Importers of foreign checkpoints, in one table by config.json's `model_type`."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path

from t2r_export.checkpoints.importers.base import Importer
from t2r_export.checkpoints.importers.folder import Imported, read
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, T2R
from t2r_export.config.tagged import resolve

# model_type -> "module:NAME" of its importer, in this package
FAMILIES = {
    "arcee": "arcee:ARCEE",
    "bamba": "bamba:BAMBA",
    "bart": "bart:BART",
    "bloom": "bloom:BLOOM",
    "cohere": "cohere:COHERE",
    "cohere2": "cohere:COHERE2",
    "delta_net": "delta_net:DELTA_NET",
    "dots1": "dots1:DOTS1",
    "ernie4_5": "ernie4_5:ERNIE4_5",
    "ernie4_5_moe": "ernie4_5_moe:ERNIE4_5_MOE",
    "exaone4": "exaone4:EXAONE4",
    "falcon_h1": "falcon_h1:FALCON_H1",
    "falcon_mamba": "mamba:FALCON_MAMBA",
    "gated_deltanet": "gated_deltanet:GATED_DELTANET",
    "gemma": "gemma:GEMMA",
    "gemma2": "gemma:GEMMA2",
    "gemma3": "images:GEMMA3",
    "gemma3_text": "gemma3:GEMMA3_TEXT",
    "gla": "gla:GLA",
    "glm": "glm:GLM",
    "glm4": "glm:GLM4",
    "glm4_moe": "glm4_moe:GLM4_MOE",
    "gpt2": "gpt2:GPT2",
    "gpt_neo": "gpt_neo:GPT_NEO",
    "gpt_neox": "gpt_neox:GPT_NEOX",
    "granite": "granite:GRANITE",
    "granite_swa": "granite_swa:GRANITE_SWA",
    "granitemoe": "granite_moe:GRANITE_MOE",
    "granitemoehybrid": "granite_hybrid:GRANITE_HYBRID",
    "granitemoeshared": "granite_moe:GRANITE_MOE_SHARED",
    "helium": "helium:HELIUM",
    "hunyuan_v1_dense": "hunyuan:HUNYUAN_V1_DENSE",
    "internlm3": "internlm3:INTERNLM3",
    "jamba": "jamba:JAMBA",
    "kda": "kda:KDA",
    "lfm2": "lfm2:LFM2",
    "lfm2_moe": "lfm2_moe:LFM2_MOE",
    "lfm3": "lfm3:LFM3",
    "llama": "llama:LLAMA",
    "mamba": "mamba:MAMBA",
    "mamba2": "mamba2:MAMBA2",
    "marian": "marian:MARIAN",
    "ministral": "mistral:MINISTRAL",
    "ministral3": "ministral3:MINISTRAL3",
    "mistral": "mistral:MISTRAL",
    "mistral3": "images:MISTRAL3",
    "mixtral": "mixtral:MIXTRAL",
    "nanochat": "nanochat:NANOCHAT",
    "nemotron": "nemotron:NEMOTRON",
    "nemotron_h": "nemotron_h:NEMOTRON_H",
    "olmo": "olmo:OLMO",
    "olmo2": "olmo2:OLMO2",
    "olmo3": "olmo3:OLMO3",
    "olmo_hybrid": "olmo_hybrid:OLMO_HYBRID",
    "olmoe": "olmoe:OLMOE",
    "opt": "opt:OPT",
    "pegasus": "pegasus:PEGASUS",
    "phi": "phi:PHI",
    "phi3": "phi3:PHI3",
    "qwen2": "qwen2:QWEN2",
    "qwen2_moe": "qwen2_moe:QWEN2_MOE",
    "qwen3": "qwen3:QWEN3",
    "qwen3_5": "qwen3_5:QWEN3_5",
    "qwen3_5_moe": "qwen3_next:QWEN3_5_MOE",
    "qwen3_5_moe_text": "qwen3_next:QWEN3_5_MOE_TEXT",
    "qwen3_5_text": "qwen3_5:QWEN3_5_TEXT",
    "qwen3_moe": "qwen3_moe:QWEN3_MOE",
    "qwen3_next": "qwen3_next:QWEN3_NEXT",
    "recurrent_gemma": "recurrent_gemma:RECURRENT_GEMMA",
    "retnet": "retnet:RETNET",
    "rwkv7": "rwkv7:RWKV7",
    "seed_oss": "seed_oss:SEED_OSS",
    "smollm3": "smollm3:SMOLLM3",
    "stablelm": "stablelm:STABLELM",
    "starcoder2": "starcoder2:STARCODER2",
    "zamba2": "zamba2:ZAMBA2",
}


class Importers(Mapping[str, Importer]):
    """The importers of FAMILIES. A family's module is imported when its importer is used."""

    def __getitem__(self, family: str) -> Importer:
        importer: Importer = resolve(f"{__name__}.{FAMILIES[family]}")
        return importer

    def __contains__(self, family: object) -> bool:
        return family in FAMILIES

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILIES)

    def __len__(self) -> int:
        return len(FAMILIES)


IMPORTERS = Importers()


def read_folder(path: str | Path) -> Imported:
    """Read a Hugging Face folder of any family in `IMPORTERS`, or one that `t2r save --as transformers` wrote.

    Raises UserError, see `importers.folder.read`.
    """
    return read(Path(path), ChainMap({MODEL_TYPE: T2R}, IMPORTERS))


__all__ = ["IMPORTERS", "Imported", "Importer", "read_folder"]

"""Importers of foreign checkpoints, in one table by config.json's `model_type`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from t2r_export.checkpoints.importers.base import Importer
from t2r_export.checkpoints.importers.files import Adapted, Folder
from t2r_export.checkpoints.importers.folder import Imported, read
from t2r_export.checkpoints.importers.layer_norms import LAYER_NORMS
from t2r_export.checkpoints.importers.llamas import LLAMAS
from t2r_export.checkpoints.importers.norms_after import NORMS_AFTER
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, T2R
from t2r_export.config.tagged import resolve

# families with a separate module: model_type -> "module:NAME" in this package
MODULES = {
    "bamba": "falcon_h1:BAMBA",
    "bart": "bart:BART",
    "bloom": "gpt2:BLOOM",
    "delta_net": "fla:DELTA_NET",
    "dots1": "glm4_moe:DOTS1",
    "ernie4_5_moe": "sparse:ERNIE4_5_MOE",
    "falcon_h1": "falcon_h1:FALCON_H1",
    "falcon_mamba": "mamba:FALCON_MAMBA",
    "gated_deltanet": "fla:GATED_DELTANET",
    "gemma": "gemma:GEMMA",
    "gemma2": "gemma:GEMMA2",
    "gemma3": "images:GEMMA3",
    "gemma3_text": "gemma:GEMMA3_TEXT",
    "gla": "fla:GLA",
    "glm4_moe": "glm4_moe:GLM4_MOE",
    "gpt2": "gpt2:GPT2",
    "gpt_neo": "gpt2:GPT_NEO",
    "gpt_neox": "gpt_neox:GPT_NEOX",
    "granite": "granite:GRANITE",
    "granite_swa": "granite:GRANITE_SWA",
    "granitemoe": "granite:GRANITE_MOE",
    "granitemoehybrid": "granite_hybrid:GRANITE_HYBRID",
    "granitemoeshared": "granite:GRANITE_MOE_SHARED",
    "hunyuan_v1_dense": "rotations:HUNYUAN_V1_DENSE",
    "jamba": "jamba:JAMBA",
    "kda": "fla:KDA",
    "lfm2": "lfm2:LFM2",
    "lfm2_moe": "lfm2:LFM2_MOE",
    "lfm3": "lfm2:LFM3",
    "llama": "llama:LLAMA",
    "mamba": "mamba:MAMBA",
    "mamba2": "mamba2:MAMBA2",
    "marian": "bart:MARIAN",
    "ministral3": "rotations:MINISTRAL3",
    "mistral3": "images:MISTRAL3",
    "mixtral": "sparse:MIXTRAL",
    "nanochat": "rotations:NANOCHAT",
    "nemotron_h": "nemotron_h:NEMOTRON_H",
    "olmo_hybrid": "olmo_hybrid:OLMO_HYBRID",
    "olmoe": "sparse:OLMOE",
    "opt": "opt:OPT",
    "pegasus": "bart:PEGASUS",
    "qwen2_moe": "sparse:QWEN2_MOE",
    "qwen3_5": "qwen3_5:QWEN3_5",
    "qwen3_5_moe": "qwen3_5:QWEN3_5_MOE",
    "qwen3_5_moe_text": "qwen3_5:QWEN3_5_MOE_TEXT",
    "qwen3_5_text": "qwen3_5:QWEN3_5_TEXT",
    "qwen3_moe": "sparse:QWEN3_MOE",
    "qwen3_next": "qwen3_5:QWEN3_NEXT",
    "recurrent_gemma": "recurrent_gemma:RECURRENT_GEMMA",
    "retnet": "fla:RETNET",
    "rwkv7": "rwkv7:RWKV7",
    "smollm3": "rotations:SMOLLM3",
    "zamba2": "zamba2:ZAMBA2",
}
FAMILIES: dict[str, Importer | str] = {**MODULES, **LLAMAS, **LAYER_NORMS, **NORMS_AFTER}


class Importers(Mapping[str, Importer]):
    """The importers of a table like FAMILIES, in order of names. A module is imported when its importer is used."""

    def __init__(self, table: Mapping[str, Importer | str]) -> None:
        self.table = table

    def __getitem__(self, family: str) -> Importer:
        found = self.table[family]
        importer: Importer = resolve(f"{__name__}.{found}") if isinstance(found, str) else found
        return importer

    def __contains__(self, family: object) -> bool:
        return family in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.table))

    def __len__(self) -> int:
        return len(self.table)


IMPORTERS = Importers(FAMILIES)


def read_folder(path: str | Path, adapter: Path | None = None, draft_head: bool = False) -> Imported:
    """Read a Hugging Face folder of any family in `IMPORTERS`, or one that `t2r save --as transformers` wrote.

    Args:
        adapter: a folder of peft, which is merged.
        draft_head: read the model's draft head, as a model of its own.

    Raises UserError, see `importers.folder.read`.
    """
    files = Folder(Path(path)) if adapter is None else Adapted(Path(path), adapter)
    return read(files, Importers({**FAMILIES, MODEL_TYPE: T2R}), draft_head=draft_head)


__all__ = ["IMPORTERS", "Imported", "Importer", "read_folder"]

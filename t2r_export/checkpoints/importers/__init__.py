"""Importers of foreign checkpoints: one family per file, in one table by config.json's `model_type`."""

from __future__ import annotations

from pathlib import Path

from t2r_export.checkpoints.importers.arcee import ARCEE
from t2r_export.checkpoints.importers.bamba import BAMBA
from t2r_export.checkpoints.importers.bart import BART
from t2r_export.checkpoints.importers.base import Importer
from t2r_export.checkpoints.importers.bloom import BLOOM
from t2r_export.checkpoints.importers.cohere import COHERE, COHERE2
from t2r_export.checkpoints.importers.delta_net import DELTA_NET
from t2r_export.checkpoints.importers.dots1 import DOTS1
from t2r_export.checkpoints.importers.ernie4_5 import ERNIE4_5
from t2r_export.checkpoints.importers.ernie4_5_moe import ERNIE4_5_MOE
from t2r_export.checkpoints.importers.exaone4 import EXAONE4
from t2r_export.checkpoints.importers.falcon_h1 import FALCON_H1
from t2r_export.checkpoints.importers.folder import Imported, read
from t2r_export.checkpoints.importers.gated_deltanet import GATED_DELTANET
from t2r_export.checkpoints.importers.gemma import GEMMA, GEMMA2
from t2r_export.checkpoints.importers.gemma3 import GEMMA3_TEXT
from t2r_export.checkpoints.importers.gla import GLA
from t2r_export.checkpoints.importers.glm import GLM, GLM4
from t2r_export.checkpoints.importers.glm4_moe import GLM4_MOE
from t2r_export.checkpoints.importers.gpt2 import GPT2
from t2r_export.checkpoints.importers.gpt_neo import GPT_NEO
from t2r_export.checkpoints.importers.gpt_neox import GPT_NEOX
from t2r_export.checkpoints.importers.granite import GRANITE
from t2r_export.checkpoints.importers.granite_hybrid import GRANITE_HYBRID
from t2r_export.checkpoints.importers.granite_moe import GRANITE_MOE, GRANITE_MOE_SHARED
from t2r_export.checkpoints.importers.granite_swa import GRANITE_SWA
from t2r_export.checkpoints.importers.helium import HELIUM
from t2r_export.checkpoints.importers.hunyuan import HUNYUAN_V1_DENSE
from t2r_export.checkpoints.importers.images import GEMMA3, MISTRAL3
from t2r_export.checkpoints.importers.internlm3 import INTERNLM3
from t2r_export.checkpoints.importers.jamba import JAMBA
from t2r_export.checkpoints.importers.kda import KDA
from t2r_export.checkpoints.importers.lfm2 import LFM2
from t2r_export.checkpoints.importers.lfm2_moe import LFM2_MOE
from t2r_export.checkpoints.importers.lfm3 import LFM3
from t2r_export.checkpoints.importers.llama import LLAMA
from t2r_export.checkpoints.importers.mamba import FALCON_MAMBA, MAMBA
from t2r_export.checkpoints.importers.mamba2 import MAMBA2
from t2r_export.checkpoints.importers.marian import MARIAN
from t2r_export.checkpoints.importers.ministral3 import MINISTRAL3
from t2r_export.checkpoints.importers.mistral import MINISTRAL, MISTRAL
from t2r_export.checkpoints.importers.mixtral import MIXTRAL
from t2r_export.checkpoints.importers.nanochat import NANOCHAT
from t2r_export.checkpoints.importers.nemotron import NEMOTRON
from t2r_export.checkpoints.importers.nemotron_h import NEMOTRON_H
from t2r_export.checkpoints.importers.olmo import OLMO
from t2r_export.checkpoints.importers.olmo2 import OLMO2
from t2r_export.checkpoints.importers.olmo3 import OLMO3
from t2r_export.checkpoints.importers.olmo_hybrid import OLMO_HYBRID
from t2r_export.checkpoints.importers.olmoe import OLMOE
from t2r_export.checkpoints.importers.opt import OPT
from t2r_export.checkpoints.importers.pegasus import PEGASUS
from t2r_export.checkpoints.importers.phi import PHI
from t2r_export.checkpoints.importers.phi3 import PHI3
from t2r_export.checkpoints.importers.qwen2 import QWEN2
from t2r_export.checkpoints.importers.qwen2_moe import QWEN2_MOE
from t2r_export.checkpoints.importers.qwen3 import QWEN3
from t2r_export.checkpoints.importers.qwen3_5 import QWEN3_5, QWEN3_5_TEXT
from t2r_export.checkpoints.importers.qwen3_moe import QWEN3_MOE
from t2r_export.checkpoints.importers.qwen3_next import QWEN3_5_MOE, QWEN3_5_MOE_TEXT, QWEN3_NEXT
from t2r_export.checkpoints.importers.recurrent_gemma import RECURRENT_GEMMA
from t2r_export.checkpoints.importers.retnet import RETNET
from t2r_export.checkpoints.importers.rwkv7 import RWKV7
from t2r_export.checkpoints.importers.seed_oss import SEED_OSS
from t2r_export.checkpoints.importers.smollm3 import SMOLLM3
from t2r_export.checkpoints.importers.stablelm import STABLELM
from t2r_export.checkpoints.importers.starcoder2 import STARCODER2
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, T2R
from t2r_export.checkpoints.importers.zamba2 import ZAMBA2

IMPORTERS: dict[str, Importer] = {
    "arcee": ARCEE,
    "bamba": BAMBA,
    "bart": BART,
    "bloom": BLOOM,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "delta_net": DELTA_NET,
    "dots1": DOTS1,
    "ernie4_5": ERNIE4_5,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "exaone4": EXAONE4,
    "falcon_h1": FALCON_H1,
    "falcon_mamba": FALCON_MAMBA,
    "gated_deltanet": GATED_DELTANET,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3_TEXT,
    "gla": GLA,
    "glm": GLM,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "gpt2": GPT2,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "granite": GRANITE,
    "granite_swa": GRANITE_SWA,
    "granitemoe": GRANITE_MOE,
    "granitemoehybrid": GRANITE_HYBRID,
    "granitemoeshared": GRANITE_MOE_SHARED,
    "helium": HELIUM,
    "hunyuan_v1_dense": HUNYUAN_V1_DENSE,
    "internlm3": INTERNLM3,
    "jamba": JAMBA,
    "kda": KDA,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "lfm3": LFM3,
    "llama": LLAMA,
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "marian": MARIAN,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "mistral3": MISTRAL3,
    "mixtral": MIXTRAL,
    "nanochat": NANOCHAT,
    "nemotron": NEMOTRON,
    "nemotron_h": NEMOTRON_H,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "olmo_hybrid": OLMO_HYBRID,
    "olmoe": OLMOE,
    "opt": OPT,
    "pegasus": PEGASUS,
    "phi": PHI,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5_MOE,
    "qwen3_5_moe_text": QWEN3_5_MOE_TEXT,
    "qwen3_5_text": QWEN3_5_TEXT,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "recurrent_gemma": RECURRENT_GEMMA,
    "retnet": RETNET,
    "rwkv7": RWKV7,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
    "zamba2": ZAMBA2,
}


def read_folder(path: str | Path) -> Imported:
    """Read a Hugging Face folder of any family in `IMPORTERS`, or one that `t2r save --as transformers` wrote.

    Raises UserError, see `importers.folder.read`.
    """
    return read(Path(path), {**IMPORTERS, MODEL_TYPE: T2R})


__all__ = ["IMPORTERS", "Imported", "Importer", "read_folder"]

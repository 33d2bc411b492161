"""The files of a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub.card import SECTIONS, model_card, read_report
from t2r_export.checkpoints.hub.code import CODE, modeling_code
from t2r_export.checkpoints.hub.generation import generation_config
from t2r_export.checkpoints.hub.native import native_config
from t2r_export.checkpoints.hub.student import student_config
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.chat import TEMPLATE
from t2r_export.checkpoints.importers.files import CONFIG, GENERATION, LIMITS, WEIGHTS
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, T2R
from t2r_export.checkpoints.weights import as_float32, weight_shapes
from t2r_export.config.saved import TransformersForm
from t2r_export.paths import new_folder
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_file import Library


@dataclass(frozen=True)
class Saved:
    """The written folder. `code`: whether it needs trust_remote_code=True."""

    files: tuple[Path, ...]
    model_type: str
    architecture: str
    code: bool


def save_transformers(loaded: Checkpoint, folder: Path, how: TransformersForm | None = None) -> Saved:
    """Write a folder for transformers, with the class of the model's family or with modeling_t2r.py.

    Args:
        folder: must not exist, or be empty.
        how: the precision of the weights, and reports for the model card; None: float32, no reports.

    Raises:
        UserError: a translator, or a form that modeling_t2r.py does not compute; a weight that is not finite in that
            precision; a folder that cannot be written. Nothing is left behind.
    """
    how = TransformersForm() if how is None else how
    measured = {name: getattr(how, name) for name in SECTIONS}
    reports = {name: read_report(path, name) for name, path in measured.items() if path is not None}
    config = native_config(loaded)
    code = config is None
    config = student_config(loaded) if config is None else config
    generation = generation_config(loaded.config)
    # absent tokens are written as null, since families have defaults for absent keys
    tokens = {key: generation.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = {**config, **tokens, "dtype": how.weights}
    texts = {CONFIG: _json(config), GENERATION: _json(generation), **_tokenizer(loaded)}
    if len(texts[CONFIG].encode()) > LIMITS[CONFIG]:
        do = "save a model.pt with --as t2r"
        raise UserError(f"a {CONFIG} of at most {LIMITS[CONFIG]} bytes", f"{len(texts[CONFIG])}", do)
    texts |= {CODE.name: modeling_code()} if code else {}
    texts["README.md"] = model_card(loaded, config, code, reports)
    tensors = _tensors(loaded, str(config["model_type"]), getattr(torch, how.weights))
    with new_folder(folder) as part:
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
        save_file(tensors, part / WEIGHTS, {"format": "pt"})
    files = tuple(folder / name for name in (*texts, WEIGHTS))
    return Saved(files, config["model_type"], config["architectures"][0], code)


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _tensors(loaded: Checkpoint, family: str, dtype: torch.dtype) -> dict[str, Tensor]:
    importer = T2R if family == MODEL_TYPE else IMPORTERS[family]
    sources = importer.sources(loaded.config, weight_shapes(loaded.config))
    state = {name: tensor.detach().cpu() for name, tensor in loaded.model.state_dict().items()}
    held = {name: source for name, source in sources.items() if source.constant is None}
    stored = {name: source.stored(state).to(dtype).contiguous() for name, source in held.items()}
    for name, tensor in stored.items():
        as_float32(name, tensor)  # raises for overflow
    return stored


def _tokenizer(loaded: Checkpoint) -> dict[str, str]:
    """Files of the tokenizer and of the chat template, as the importer reads them."""
    if loaded.tokenizer is None:
        return {}
    chat, files = loaded.chat_template, {"tokenizer.json": loaded.tokenizer}
    tokens = _special(loaded) if chat is None else chat["tokens"]
    end = {"model_max_length": loaded.config.max_positions} if loaded.config.max_positions else {}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **end, **tokens}
    files["tokenizer_config.json"] = _json(said)
    return files if chat is None else {**files, TEMPLATE: chat["template"]}


def _special(loaded: Checkpoint) -> dict[str, str]:
    """The texts of the model's begin and end tokens."""
    library, config = Library(str(loaded.tokenizer)).tokenizer, loaded.config
    numbers = {"bos_token": config.bos_token, "eos_token": next(iter(config.eos_tokens), None)}
    texts = {name: None if token is None else library.id_to_token(token) for name, token in numbers.items()}
    return {name: text for name, text in texts.items() if text is not None}

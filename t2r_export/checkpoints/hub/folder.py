"""The files of a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub.card import SECTIONS, model_card, read_report
from t2r_export.checkpoints.hub.code import CODE, modeling_code
from t2r_export.checkpoints.hub.generation import generation_config
from t2r_export.checkpoints.hub.native import native_config
from t2r_export.checkpoints.hub.student import student_config
from t2r_export.checkpoints.hub.writer import as_json, token_texts, write_folder
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.chat import TEMPLATE
from t2r_export.checkpoints.importers.files import CONFIG, GENERATION
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, T2R
from t2r_export.config.saved import TransformersForm


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
    texts = {CONFIG: as_json(config), GENERATION: as_json(generation), **_tokenizer(loaded)}
    texts |= {CODE.name: modeling_code()} if code else {}
    texts["README.md"] = model_card(loaded, config, code, reports)
    family = config["model_type"]
    importer = T2R if family == MODEL_TYPE else IMPORTERS[family]
    files = write_folder(folder, texts, loaded, importer, getattr(torch, how.weights))
    return Saved(tuple(files), family, config["architectures"][0], code)


def _tokenizer(loaded: Checkpoint) -> dict[str, str]:
    """Files of the tokenizer and of the chat template, as the importer reads them."""
    if loaded.tokenizer is None:
        return {}
    chat, files = loaded.chat_template, {"tokenizer.json": loaded.tokenizer}
    tokens = _special(loaded) if chat is None else chat["tokens"]
    end = {"model_max_length": loaded.config.max_positions} if loaded.config.max_positions else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **end, **tokens}
    files["tokenizer_config.json"] = as_json(config)
    return files if chat is None else {**files, TEMPLATE: chat["template"]}


def _special(loaded: Checkpoint) -> dict[str, str]:
    """The texts of the model's begin and end tokens."""
    numbers = {"bos_token": loaded.config.bos_token, "eos_token": next(iter(loaded.config.eos_tokens), None)}
    return token_texts(str(loaded.tokenizer), numbers)

"""Options of `t2r distill`. Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.layer_numbers import read_layers
from t2r_export.config.students import student_mixer
from t2r_export.paths import RECORD, check_folder, existing_model, text_files


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """A distillation: the model `source`, and the folder `out` of everything that is made of it.

    Args:
        source: a decoder: model.pt, Hugging Face folder, .gguf or hf:OWNER/NAME.
        training: its `model` and `output` are in `out`.
        hours: longest training; steps beyond it are left out. None: all steps.
        anew: replace files in `out` that have another origin.
    """

    source: Path
    out: Path
    mixer: tuple[str, Mapping[str, Any]]
    layers: str
    training: FinetuneConfig
    hours: float | None
    anew: bool = False

    def check(self) -> None:
        """Raise UserError for missing inputs, an invalid mixer, and a folder that has other files."""
        student_mixer(*self.mixer)
        read_layers(self.layers)
        existing_model(self.source)
        text_files(self.training.data)
        self.training.check_places()
        if not (self.out / RECORD).exists():
            check_folder(self.out)

"""Vision models, of which the text model is read: its config is in text_config, its tensors have a longer prefix.

The larger sizes of Gemma 3 and of Ministral 3 exist only in this form. Vision tensors are ignored.
"""

from __future__ import annotations

import dataclasses
import re

from t2r_export.checkpoints.importers.base import Importer
from t2r_export.checkpoints.importers.gemma import GEMMA3_TEXT
from t2r_export.checkpoints.importers.keys import words
from t2r_export.checkpoints.importers.rotations import MINISTRAL3
from t2r_export.checkpoints.importers.sources import HEAD

OUTSIDE = (
    "boi_token_index eoi_token_index image_token_index mm_tokens_per_image multimodal_projector_bias "
    "projector_hidden_act spatial_merge_size vision_config vision_feature_layer"
)


def with_images(importer: Importer, text: str) -> Importer:
    """An importer of the model around a text model of type `text`, which `importer` reads."""
    return dataclasses.replace(
        importer,
        keys=dataclasses.replace(importer.keys, harmless=importer.keys.harmless | words(OUTSIDE)),
        nested="text_config",
        text=text,
        wrapper=("model.language_model.", "language_model.model."),  # current, and former
        renamed={"model.language_model.lm_head.weight": HEAD},
        buffers=re.compile(rf"model\.(vision_tower|multi_modal_projector)\..*|{importer.buffers.pattern}"),
    )


GEMMA3 = with_images(GEMMA3_TEXT, "gemma3_text")
MISTRAL3 = with_images(MINISTRAL3, "ministral3")

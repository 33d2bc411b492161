"""A model as a folder for transformers: with the native class if transformers has one, else with our code."""

from __future__ import annotations

from t2r_export.checkpoints.hub.folder import Saved, save_transformers
from t2r_export.checkpoints.hub.translator import save_translator

__all__ = ["Saved", "save_transformers", "save_translator"]

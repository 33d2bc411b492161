"""A model as a folder for transformers: its own class where transformers has one, and otherwise ours beside it."""

from __future__ import annotations

from t2r_export.checkpoints.hub.folder import Saved, save_transformers

__all__ = ["Saved", "save_transformers"]

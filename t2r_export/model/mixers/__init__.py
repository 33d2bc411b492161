"""Attention mixers, listed in t2r_export.config.mixers.INSIDES; `base` has their interface."""

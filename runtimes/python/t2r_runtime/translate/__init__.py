"""Translators: sources, beam search."""

"""Texts and pairs: reading, tokenizing, splitting, caching."""

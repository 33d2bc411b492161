"""Decoders: one text, many side by side, saved prefixes, drafts."""

"""Tokenizers and text files."""

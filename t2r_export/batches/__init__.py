"""Batches of tokens and of sentence pairs for training: windows, lengths, orders."""

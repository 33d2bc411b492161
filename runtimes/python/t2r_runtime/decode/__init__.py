"""Decoders: single texts, batches, cached prefixes, speculative decoding."""

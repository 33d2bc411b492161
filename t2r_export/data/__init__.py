"""Training data, texts and pairs: reading, tokenizing, splitting, batching."""

"""Training texts and pairs: reading, splitting, batching."""

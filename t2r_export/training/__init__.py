"""Training of converted models: stages, losses, resumable state, logs."""

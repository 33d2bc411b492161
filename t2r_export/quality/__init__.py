"""How well a model does: nats per token, BLEU, translations."""

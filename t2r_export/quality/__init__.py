"""Model quality: nats per token, BLEU, translations, loss by quantization."""

"""What a model, a training run, an export and a quantization are, as plain data: no torch, no onnx."""

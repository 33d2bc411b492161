"""Configs of models, training runs, exports and quantization, as plain data: no torch, no onnx."""

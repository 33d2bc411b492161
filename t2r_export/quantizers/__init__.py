"""Implementations of the quantization schemes in t2r_export.config.quantize, based on ONNX Runtime's quantizers."""

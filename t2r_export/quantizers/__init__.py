"""The functions of the quantization schemes in t2r_export.config.quantize, by ONNX Runtime's own quantizers."""

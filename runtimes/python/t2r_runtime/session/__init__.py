"""ONNX Runtime sessions and recurrent states."""

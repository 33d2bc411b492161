"""ONNX graphs: recorded, packed for a target, written."""

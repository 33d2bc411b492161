"""T2R's toolchain: a pretrained softmax Transformer becomes a recurrent decoder in ONNX, proved equal to its source."""

__version__ = "0.1.0"

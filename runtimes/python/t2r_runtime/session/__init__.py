"""ONNX Runtime sessions, and the states that go through them."""

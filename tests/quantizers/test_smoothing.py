"""int8 with scales of channels: the rounding that is measured, planted outliers, products in float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import small
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import build, export
from t2r_export.quantize import quantize, quantized
from t2r_export.quantizers.sensitivity import text_passages
from t2r_export.quantizers.smoothing import best, error, rounded_rows, smooth
from t2r_runtime import Decoder

WIDE = dataclasses.replace(small.GPT2, width=96, layers=(small.LINEAR,) * 2, vocab_size=50)
OUTLIERS = {5: 40.0, 11: 300.0, 40: 90.0}  # factors of channels


def with_outliers() -> Checkpoint:
    """A model whose norms enlarge a few channels, for which the weights after them compensate."""
    model = small.model(WIDE)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for block in range(2):
            for channel, factor in OUTLIERS.items():
                parameters[f"blocks.{block}.norms.1.weight"][channel] *= factor
                parameters[f"blocks.{block}.norms.1.bias"][channel] *= factor
                parameters[f"blocks.{block}.parts.1.up.weight"][:, channel] /= factor
    return Checkpoint(model.config, model, None, {}, "0" * 64)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    np.save(tmp_path / "text.npy", np.random.default_rng(0).integers(0, WIDE.vocab_size, 1100))
    return tmp_path / "text.npy"


def read(graph: Path, tokens: np.ndarray) -> np.ndarray:
    decoder = Decoder(graph)
    decoder.reset(batch=1)
    return np.stack([decoder.step(tokens[i : i + 1])[0].copy() for i in range(len(tokens))])


def test_rounding_is_that_of_dynamic_quantize_linear() -> None:
    x = np.random.default_rng(0).normal(size=(1, 70)).astype(np.float32) * 3
    x[0, 40] *= 50
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["levels", "scale", "middle"]),
        onnx.helper.make_node("DequantizeLinear", ["levels", "scale", "middle"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 70]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "one", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 21)]
    session = ort.InferenceSession(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    )
    np.testing.assert_allclose(rounded_rows(x), session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert not rounded_rows(np.zeros((2, 40), np.float32)).any()


def test_scales_reduce_error_of_outliers() -> None:
    chance = np.random.default_rng(0)
    x, matrix = (chance.normal(size=shape).astype(np.float32) for shape in ((300, 70), (70, 33)))
    x[:, 7] *= 100
    matrix[7] /= 100
    x[:, 9] = 0
    scales = best(x, matrix)
    assert scales[7] == scales.max()
    assert error(x, matrix, scales) < 0.2 * error(x, matrix, np.ones(70, np.float32))


def test_outliers_fail_int8_and_pass_with_scales(text: Path, tmp_path: Path) -> None:
    source, tokens = tmp_path / "g.onnx", np.load(text)[:40]
    export(with_outliers(), source, ExportConfig())
    quantize(source, tmp_path / "plain.onnx", QuantizeConfig(scheme="int8"))
    config = QuantizeConfig(scheme="int8", activation_error=1.0, calibrate=text)
    report = quantize(source, tmp_path / "scaled.onnx", config)
    assert not report.float_products
    assert report.bytes_after < 0.45 * report.bytes_before
    exact, plain, scaled = (read(tmp_path / f"{name}.onnx", tokens) for name in ("g", "plain", "scaled"))
    assert np.abs(scaled - exact).max() < 0.15 * np.abs(plain - exact).max()


def test_products_above_the_limit_are_float32(text: Path) -> None:
    bundle, _ = build(with_outliers(), ExportConfig())
    errors = smooth(bundle, text_passages(np.load(text), bundle.signature), {})
    assert {node.input[1] for node in bundle.step.graph.node if node.op_type == "Gemm"} == errors.keys()
    limit = sorted(errors.values())[2]
    made, config = quantized(bundle, QuantizeConfig(scheme="int8", activation_error=limit, calibrate=text))
    assert sorted(config.float_products) == sorted(name for name, each in errors.items() if each > limit)
    assert len(config.float_products) == len(errors) - 3
    assert sum(node.op_type == "MatMulInteger" for node in made.step.graph.node) == 3
    kept = {tensor.name.removesuffix(".transposed") for tensor in made.step.graph.initializer}
    assert set(config.float_products) <= kept

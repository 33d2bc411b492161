"""Quantization of single weights equals ONNX Runtime's quantizers of whole models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import small
from t2r_export import quantize as quantizing
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import Weight, values
from t2r_export.quantize import export_quantized, quantize
from t2r_export.quantizers.base import replace_initializers, silence_ort
from t2r_export.quantizers.blocks import in_blocks
from t2r_export.quantizers.tables import OWN, quantize_embedding


def model_of(operator: str, inputs: list[str], weight: np.ndarray, x: int) -> onnx.ModelProto:
    """A model of one node that reads `weight`; x is the type of its input."""
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"], name="node")],
        "one",
        [helper.make_tensor_value_info("input_ids", x, ["B"] if operator == "Gather" else ["B", len(weight)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("shape", [(96, 5), (70, 3), (7, 2)])  # whole blocks, a part of one, less than one
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_equal_ort_quantizer(
    bits: int, size: int, asymmetric: bool, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    monkeypatch.setattr("t2r_export.quantizers.blocks.NUMBERS", 2 * shape[0])  # two columns at a time
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    how = DefaultWeightOnlyQuantConfig(size, not asymmetric, bits=bits)
    quantizer = MatMulNBitsQuantizer(model_of("MatMul", ["input_ids", "w"], matrix, TensorProto.FLOAT), algo_config=how)
    with silence_ort():
        quantizer.process()
    made = initializers(quantizer.model.model)
    expected = [made[f"w_{part}"] for part in (f"Q{bits}", "scales", "zero_points")[: 2 + asymmetric]]
    numbers, scales, *zeros = (numpy_helper.to_array(tensor) for tensor in expected)
    found = in_blocks(matrix, bits, size, asymmetric)
    for array, each in zip([numbers, scales.astype(np.float16).astype(np.float32), *zeros], found, strict=True):
        np.testing.assert_array_equal(array, each, strict=True)


def test_table_equals_ort_quantizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    monkeypatch.setattr("t2r_export.quantizers.tables.TABLE_ROWS", 4)
    table = np.random.default_rng(0).normal(size=(11, 6)).astype(np.float32)
    model = model_of("Gather", ["w", "input_ids"], table, TensorProto.INT64)
    with silence_ort():
        quantize_dynamic(model, tmp_path / "q.onnx", weight_type=QuantType.QInt8)
    expected = onnx.load(tmp_path / "q.onnx").graph
    weights: dict[str, Weight] = {}
    quantize_embedding(model, weights)
    assert [node.op_type for node in model.graph.node] == [node.op_type for node in expected.node]
    found = {name.replace(OWN, ""): tensor for name, tensor in initializers(model).items()}
    assert found.keys() == {tensor.name for tensor in expected.initializer}
    for tensor in expected.initializer:
        np.testing.assert_array_equal(values(found[tensor.name], weights), numpy_helper.to_array(tensor), strict=True)


@pytest.mark.parametrize("name", ["learned", "rotary_keep", "moe"])  # a tied head, and an untied one; experts
@pytest.mark.parametrize(
    "scheme, prefill", [("fp16", False), ("int8", False), ("w8", False), ("w4", False), ("fp16", True), ("w4", True)]
)
def test_export_quantized_equals_two_steps(
    scheme: str, name: str, prefill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, how, checkpoint = ExportConfig(prefill=prefill), QuantizeConfig(scheme=scheme), small.checkpoint(name)
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    export(checkpoint, tmp_path / "g.onnx", options)
    quantize(tmp_path / "g.onnx", folders[1] / "q.onnx", how)
    monkeypatch.setattr(quantizing, "read_graph", None)
    _, report = export_quantized(checkpoint, folders[0] / "q.onnx", options, how)
    assert sorted(report.files) == sorted(folders[0].iterdir())
    one, two = ({f.name: f.read_bytes() for f in folder.iterdir()} for folder in folders)
    assert one == two


def test_unused_weights_are_removed() -> None:
    model = model_of("MatMul", ["input_ids", "w"], np.ones((2, 3), np.float32), TensorProto.FLOAT)
    other = numpy_helper.from_array(np.zeros((2, 3), np.float32), "other")
    kept = initializers(model) | {"other": other}
    model.graph.node[0].input[1] = "other"
    replace_initializers(model, kept)
    assert [tensor.name for tensor in model.graph.initializer] == ["other"]


def test_outline_loads_no_compiler() -> None:
    program = (
        "import sys; from t2r_export.config.mixers import LinearConfig;"
        "from t2r_export.config.uniform import UniformConfig;"
        "from t2r_export.config.attention import HeadsConfig;"
        "attention = HeadsConfig(heads=2, kv_heads=1, head_size=6);"
        "sizes = dict(vocab_size=7, width=12, attention=attention, ffn_size=5);"
        "config = UniformConfig(**sizes, layers=(LinearConfig(3),), position='none').build();"
        "from t2r_export.checkpoints.weights import weight_shapes;"
        "assert weight_shapes(config); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_prefill_graph_reuses_quantized_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = []

    def counted(matrix: np.ndarray, *how: Any) -> list[np.ndarray]:
        rounded.append(matrix.shape)
        return in_blocks(matrix, *how)

    monkeypatch.setattr("t2r_export.quantizers.blocks.in_blocks", counted)
    export_quantized(small.checkpoint(), tmp_path / "g.onnx", ExportConfig(), QuantizeConfig(scheme="w4"))
    alone = rounded.copy()
    rounded.clear()
    export_quantized(small.checkpoint(), tmp_path / "h.onnx", ExportConfig(prefill=True), QuantizeConfig(scheme="w4"))
    assert rounded == alone != []

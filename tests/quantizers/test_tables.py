"""Look-ups in a tied head's quantized weights equal its rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import small
from small import LINEAR_CROSS
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.graph.weights import Weight, fill
from t2r_export.quantize import quantize
from t2r_export.quantizers.base import silence_ort
from t2r_export.quantizers.blocks import blocks, restored
from t2r_export.quantizers.integers import dynamic
from t2r_export.quantizers.smoothing import CHANNELS
from t2r_runtime import Translator

MANY = 333
ROWS, WIDTH = 11, 70  # the last block is a part of one
TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
IDS = np.array([[0, 3], [10, 3]])


def tied(ids: str, axes: list[str]) -> onnx.ModelProto:
    """A graph that looks up tokens; with ids of one axis, it has a head of the same matrix."""
    step = len(axes) == 1
    nodes = [helper.make_node("Gather", ["w", ids], ["x"], name="table")]
    nodes += [helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1)] if step else []
    outputs = [("x", [*axes, WIDTH]), *([("logits", [*axes, ROWS])] if step else [])]
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info(ids, TensorProto.INT64, axes)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(TABLE, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def rows(model: onnx.ModelProto, weights: dict[str, Weight], ids: np.ndarray) -> np.ndarray:
    fill(model, weights)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(["x"], {session.get_inputs()[0].name: ids})[0]
    return found


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_row_of_blocks_equals_head(bits: int, size: int, asymmetric: bool) -> None:
    config = QuantizeConfig(scheme="w4", head_bits=bits, block_size=size, asymmetric=asymmetric, accuracy_level=0)
    weights: dict[str, Weight] = {}
    step = blocks(tied("input_ids", ["B"]), config, None, weights)
    encoder = blocks(tied("source_ids", ["B", "M"]), config, None, weights)
    expected = restored(TABLE.T, bits, size, asymmetric).T
    np.testing.assert_allclose(rows(step, weights, IDS[0]), expected[IDS[0]], rtol=1e-6)
    np.testing.assert_allclose(rows(encoder, weights, IDS), expected[IDS], rtol=1e-6)
    assert sum(np.asarray(weight).size > 2 * ROWS * WIDTH // size for weight in weights.values()) == 1


def test_row_of_columns_equals_head() -> None:
    config, weights = QuantizeConfig(scheme="int8"), dict[str, Weight]()
    with silence_ort():
        step = dynamic(tied("input_ids", ["B"]), config, None, weights)
        encoder = dynamic(tied("source_ids", ["B", "M"]), config, None, weights)
    numbers, scales = (np.asarray(weight) for weight in weights.values())
    expected = (numbers.astype(np.float32) * scales).T
    np.testing.assert_allclose(expected, TABLE, atol=np.abs(TABLE).max() / 127)
    np.testing.assert_array_equal(rows(step, weights, IDS[0]), expected[IDS[0]])
    np.testing.assert_array_equal(rows(encoder, weights, IDS), expected[IDS])


@pytest.mark.parametrize("float_head", [False, True])
def test_tied_table_is_unscaled(float_head: bool) -> None:
    """Rows are those of the head, in step and encoder; of 8 bits with one scale if the head is float32."""
    scales = np.random.default_rng(2).uniform(0.1, 9, WIDTH).astype(np.float32)
    weights: dict[str, Weight] = {"w" + CHANNELS: scales}
    errors = {"w": 0.5 if float_head else 0.1}
    config = QuantizeConfig(scheme="int8", activation_error=0.2, calibrate=Path("t"), activation_errors=errors)
    with silence_ort():
        step = dynamic(tied("input_ids", ["B"]), config, None, weights)
        encoder = dynamic(tied("source_ids", ["B", "M"]), config, None, weights)
    assert sum(node.op_type == "MatMulInteger" for node in step.graph.node) == (not float_head)
    for found, ids in ((rows(step, weights, IDS[0]), IDS[0]), (rows(encoder, weights, IDS), IDS)):
        tolerance = np.abs(TABLE * scales).max(1)[ids][..., None] / 254 / scales
        np.testing.assert_array_less(np.abs(found - TABLE[ids]), 0.02 if float_head else 1.01 * tolerance + 1e-6)


def readers(file: Path) -> set[tuple[int, ...]]:
    """Offset and length in the file of weights of large tensors with a row or a column per token."""
    graph = onnx.load(file, load_external_data=False).graph
    tables = [t for t in graph.initializer if MANY in t.dims and len(t.dims) > 1 and t.external_data]
    entries = [{e.key: e.value for e in tensor.external_data} for tensor in tables]
    return {(int(entry["offset"]), int(entry["length"])) for entry in entries}


@pytest.mark.parametrize("scheme, parts", [("int8", 1), ("w8", 2), ("w4", 2)])  # numbers; in blocks also scales
def test_translator_has_one_table(scheme: str, parts: int, tmp_path: Path) -> None:
    sizes = {"vocab_size": MANY, "width": 36}  # so that a table is large enough for the file of weights
    made = small.checkpoint(dataclasses.replace(small.translator(LINEAR_CROSS, source_vocabulary=None), **sizes))
    export(made, tmp_path / "g.onnx", ExportConfig(prefill=True))
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    graphs = [file for file in report.files if file.suffix == ".onnx"]
    found = [readers(file) for file in graphs]
    assert len(graphs) == 2 + (scheme != "int8")
    assert set.union(*found) == found[0]
    assert len(found[0]) == parts
    assert small.proof(made, tmp_path / "q.onnx", 8)
    translator = Translator(tmp_path / "q.onnx", threads=1)
    assert translator.generate([1, 2, 3], 5)


@pytest.mark.parametrize(
    "options, shared", [({}, True), ({"embedding_bits": 8}, False), ({"embedding_bits": 4}, False)]
)
def test_embedding_bits_unties_table(options: dict[str, int], shared: bool, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned")
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8", **options))
    graph = onnx.load(report.files[0]).graph
    looked_up = {node.input[0] for node in graph.node if "input_ids" in node.input}
    head = next(node for node in graph.node if node.output[0] == "logits")
    assert (looked_up <= {name.removesuffix(".float32") for name in head.input}) == shared

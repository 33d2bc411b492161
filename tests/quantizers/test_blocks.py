"""Weights in blocks of 4 and 8 bits: options, and the form for accelerators."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

import small
from quantized import CLOSE, median_error
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.targets import TARGETS
from t2r_export.quantize import quantize
from t2r_export.quantizers.blocks import in_blocks, in_halves
from t2r_runtime import Decoder


@pytest.mark.parametrize("scheme", ["w8", "w4"])
def test_blocks_for_accelerators(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx", target="npu", batch=3)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "q.onnx")).graph
    axes = {v.name: len(v.type.tensor_type.shape.dim) for v in (*graph.value_info, *graph.output)}
    makers = {name: node.op_type for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert products
    assert {axes[node.input[0]] for node in products} == {3}
    (gather,) = [node for node in graph.node if "input_ids" in node.input]
    assert makers[gather.input[0]] == "DequantizeLinear"
    assert next(n.op_type for n in graph.node if gather.output[0] in n.input) == "QuantizeLinear"
    plain = dataclasses.replace(TARGETS["portable"], shared_table=False)
    monkeypatch.setattr("t2r_export.quantize.find", lambda _: plain)
    quantize(tmp_path / "g.onnx", tmp_path / "plain.onnx", QuantizeConfig(scheme=scheme))
    expected, spelled = Decoder(tmp_path / "plain.onnx"), Decoder(tmp_path / "q.onnx")
    for ids in small.ids(3, 10).T.numpy():
        np.testing.assert_allclose(spelled.step(ids), expected.step(ids), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["learned", "rotary_drop"])  # a tied head, and an untied one
def test_block_options_apply_to_graph(name: str, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", dataclasses.replace(small.CONFIGS[name], width=16))
    quantize(
        tmp_path / "g.onnx",
        tmp_path / "q.onnx",
        QuantizeConfig(scheme="w8", block_size=16, asymmetric=True, head_bits=4, embedding_bits=4),
    )
    graph = onnx.load(tmp_path / "q.onnx").graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    bits = {node.output[0]: {a.name: a.i for a in node.attribute}["bits"] for node in products}
    assert bits.pop("logits") == 4
    assert set(bits.values()) == {8}
    assert all(len(node.input) == 4 for node in products), "a zero point beside each scale"
    (table,) = [node for node in graph.node if "input_ids" in node.input]
    assert table.op_type == "GatherBlockQuantized"
    old, new = Decoder(tmp_path / "g.onnx"), Decoder(tmp_path / "q.onnx")
    assert 0 < median_error(old, new) < CLOSE["w4"]


def test_scales_are_float16_where_it_holds_them(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned")
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4"))
    graph = onnx.load(tmp_path / "q.onnx").graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer if tensor.name.endswith("_scales")}
    assert set(kinds.values()) == {onnx.TensorProto.FLOAT16}
    casts = [node.input[0] for node in graph.node if node.op_type == "Cast" and node.input[0] in kinds]
    assert sorted(casts) == sorted(kinds)  # once for all products of a weight


@pytest.mark.parametrize("factor, kind", [(1, np.float16), (1e-9, np.float32), (1e8, np.float32)])
def test_scales_beyond_float16(factor: float, kind: type) -> None:
    """Within its range, a rounded scale changes a weight by at most 2^-11 of it; beyond it, scales are not rounded."""
    matrix = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32) * np.float32(factor)
    matrix[:, 3] *= np.float32(1e-12)  # scales of a column that float16 rounds to 0
    found = in_blocks(matrix, 4, 32, False)
    _, scales, *_ = in_halves(found)
    assert scales.dtype == kind
    largest = np.abs(matrix[:64].T.reshape(5, 2, 32)).max(-1)
    np.testing.assert_allclose(np.abs(scales[:3, :2]) * np.float32(8), largest[:3], rtol=2**-11)
    np.testing.assert_array_equal(scales, found[1])

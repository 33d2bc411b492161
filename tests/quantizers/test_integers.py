"""int8 and int8-static: requirements of integer kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import small
from quantized import config
from t2r_export.quantize import quantize


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
@pytest.mark.parametrize("name", ["learned", "rotary_keep"])  # a tied head, and an untied one
def test_sums_of_two_int8_products_fit_in_16_bits(name: str, scheme: str, tokens: Path, tmp_path: Path) -> None:
    """x86 CPUs without VNNI add two products of uint8 activations and int8 weights in 16 bits, which saturate."""
    source, out = tmp_path / "g.onnx", tmp_path / "q.onnx"
    small.graph(source, name)
    quantize(source, out, config(scheme, tokens))
    found = [t for t in onnx.load(out).graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2]
    largest = max(int(np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()) for tensor in found)
    assert 2 * 255 * largest < 2**15 < 2 * 255 * 65, largest  # 64, of 7 bits


@pytest.mark.parametrize("bits, quantized", [(8, False), (16, True)])
def test_int8_static_keeps_its_products(bits: int, quantized: bool, tokens: Path, tmp_path: Path) -> None:
    """Integer kernels are matched by their neighbours: a node between a weight and its product hides it."""
    small.graph(tmp_path / "g.onnx", "rotary_drop")
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tokens, activation_bits=bits))
    before, after = (onnx.load(tmp_path / name).graph for name in ("g.onnx", "q.onnx"))
    kept = [sorted(n.name for n in graph.node if "Linear" not in n.op_type) for graph in (before, after)]
    assert kept[0] == kept[1]
    makers = {name: node.op_type for node in after.node for name in node.output}
    readers = {name: node.op_type for node in after.node for name in node.input}
    products = [node for node in after.node if node.op_type == "Gemm"]
    assert products
    for node in products:
        assert [makers[name] for name in node.input[:2]] == ["DequantizeLinear"] * 2
        assert (readers.get(node.output[0]) == "QuantizeLinear") == quantized, node.name
    assert makers[next(n.input[0] for n in after.node if n.op_type == "Gather")] == "DequantizeLinear", "the embedding"

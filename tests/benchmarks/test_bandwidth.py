"""Bytes per token against manual sums, and bandwidth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import small
from comparison import bandwidth as limit
from comparison.bandwidth import TokenBytes, bandwidth, token_bytes
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.quantize import quantize
from t2r_export.quantizers.base import tensor_bytes


def test_bandwidth_floor() -> None:
    token = TokenBytes(weights=60, states=40)
    assert token.total == 100
    assert token.floor(bytes_per_second=25) == 4


def test_token_bytes_of_weights_and_states(tmp_path: Path) -> None:
    """The head is not tied: a step reads one row of the embedding and all other weights."""
    made, report = small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1)
    found = token_bytes(tmp_path / "graph.onnx")
    assert found.states == 2 * sum(spec.bytes() for spec in report.signature.states)
    whole = sum(tensor_bytes(t) for t in onnx.load(tmp_path / "graph.onnx").graph.initializer)
    assert found.weights == whole - 4 * small.WIDTH * (small.VOCABULARY - 1)


def test_tied_head_reads_whole_table(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "none", batch=1)
    whole = sum(tensor_bytes(t) for t in onnx.load(tmp_path / "graph.onnx").graph.initializer)
    assert token_bytes(tmp_path / "graph.onnx").weights == whole


def test_token_bytes_grow_with_batch(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop")
    one, three = token_bytes(tmp_path / "graph.onnx"), token_bytes(tmp_path / "graph.onnx", batch=3)
    assert three.states == 3 * one.states
    assert three.weights == one.weights + 2 * 4 * small.WIDTH


def test_token_bytes_of_growing_caches(tmp_path: Path) -> None:
    """A step reads the rows of all tokens before, and rewrites none."""
    _, report = small.graph(tmp_path / "graph.onnx", "softmax", batch=1)
    keys = sum(spec.bytes(length=7) for spec in report.signature.states if spec.grows)
    assert keys > 0
    few, more = (token_bytes(tmp_path / "graph.onnx", context=context) for context in (0, 7))
    assert more.states - few.states == keys


def test_token_bytes_of_quantized_weights(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "none", batch=1)
    quantize(tmp_path / "graph.onnx", tmp_path / "w8.onnx", QuantizeConfig(scheme="w8", block_size=16))
    whole = token_bytes(tmp_path / "graph.onnx")
    assert token_bytes(tmp_path / "w8.onnx").weights < whole.weights
    assert token_bytes(tmp_path / "w8.onnx").states == whole.states


def test_external_weights_count(tmp_path: Path) -> None:
    from t2r_export.export import export

    export(small.checkpoint(), tmp_path / "in.onnx")
    export(small.checkpoint(), tmp_path / "out.onnx", external_bytes=0)
    assert token_bytes(tmp_path / "in.onnx") == token_bytes(tmp_path / "out.onnx")


def test_nested_graph_weights_count() -> None:
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "body", [], [])
    outer = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["x"]), helper.make_node("If", ["c"], ["z"], then_branch=body)],
        "outer",
        [],
        [],
    )
    assert limit._uses(outer) == ({"table"}, {"i", "c", "x", "w"})


@pytest.mark.parametrize("kind, expected", [(TensorProto.FLOAT, 60), (TensorProto.UINT8, 15), (TensorProto.UINT4, 8)])
def test_tensor_bytes(kind: int, expected: int) -> None:
    assert tensor_bytes(TensorProto(data_type=kind, dims=[3, 5])) == expected


def test_bandwidth_is_fastest_way() -> None:
    before = torch.get_num_threads()
    found = bandwidth(threads=1, buffer_bytes=1 << 16, repeats=2)
    assert found.bytes_per_second == max(found.forms.values()) == found.forms[found.form]
    assert len(found.forms) == 3
    assert torch.get_num_threads() == before


def test_bandwidth_is_bytes_over_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_times", lambda way, repeats: iter([1.0, 2.0, 50.0]))
    assert set(bandwidth(1, buffer_bytes=1 << 10).forms.values()) == {512.0}


def test_every_way_reads_whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[object] = []

    def run(way, repeats: int):
        results.append(way())
        return iter([1.0])

    monkeypatch.setattr(limit, "_times", run)
    bandwidth(2, buffer_bytes=4 << 10)
    ones = int(np.float32(1).view(np.int32))
    assert results[0] == [ones, ones]
    assert [float(x) for x in results[1:]] == [1024.0, 512.0]  # a dot product adds half as many products

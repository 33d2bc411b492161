"""A graph of three weights, in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper
from torch import Tensor

from t2r_export.graph import file as graph_file
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import write
from t2r_export.graph.weights import Weight, refer
from t2r_runtime.contract.signature import STEP, Signature

SHAPES = {"first": (3, 100), "second": (100, 300), "third": (300,)}  # none small enough to stay in a graph

SIGNATURE = Signature(
    states=(), vocab_size=300, bos_token=None, eos_tokens=(), batch=None, max_positions=None, past_end="refuse",
    state_layout="layers", layers=(), target="portable", quantization="none", checkpoint_sha256="", producer="test",
    tokenizer=None, top_k=None, role=STEP, graphs={},
)  # fmt: skip


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def message() -> onnx.ModelProto:
    """x @ first @ second + third, without the weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("MatMul", ["a", "second"], ["b"]),
        helper.make_node("Add", ["b", "third"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 300])],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="test", producer_version="1"
    )


NOTES = {"note": "ünïcödé"}


def write_graph(
    values: Mapping[str, Weight], path: Path, external_bytes: int = graph_file.EXTERNAL_BYTES
) -> list[Path]:
    """Write a bundle of one graph; return its files."""
    model = message()
    model.graph.initializer.extend(refer(name, weight) for name, weight in values.items())
    return write(Bundle(model, SIGNATURE, dict(values), notes=NOTES), path, external_bytes)[0]


def computes(path: Path, values: dict[str, Tensor]) -> bool:
    """Whether ONNX Runtime reads this file as the function of these weights."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    expected = torch.from_numpy(x) @ values["first"] @ values["second"] + values["third"]
    return bool(np.allclose(y, expected.detach().numpy(), rtol=1e-5, atol=1e-4))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}

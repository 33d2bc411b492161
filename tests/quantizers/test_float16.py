"""Half precision keeps guards and positions in float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import small
from t2r_export.config.mixers import Guard
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import initializers
from t2r_export.quantize import quantize
from t2r_runtime import Decoder


@pytest.mark.parametrize("guard", [Guard("clamp", 1e-6), Guard("add", 1e-3)])
def test_fp16_divides_by_guard_in_float32(guard: Guard, tmp_path: Path) -> None:
    """1e-6 is 9.5e-7 in half precision, and 1e-3 shares no constant that may be rounded."""
    layer = dataclasses.replace(small.LINEAR, guard=guard)
    small.graph(tmp_path / "g.onnx", dataclasses.replace(small.GPT2, layers=(layer, layer)))
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="fp16"))
    model = onnx.load(tmp_path / "q.onnx")
    weights = initializers(model)
    operator = {"clamp": "Max", "add": "Add"}[guard.kind]
    values = [numpy_helper.to_array(weights[i]) for n in model.graph.node if n.op_type == operator
              for i in n.input if i in weights]  # fmt: skip
    assert sum(v.dtype == np.float32 and v == np.float32(guard.eps) for v in values) == 2
    types = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    divisions = [n for n in model.graph.node if n.op_type == "Div"]
    assert divisions
    assert {types[n.output[0]] for n in divisions} == {TensorProto.FLOAT}
    gemms = [n.output[0] for n in model.graph.node if n.op_type == "Gemm" and n.output[0] in types]
    assert {types[name] for name in gemms} == {TensorProto.FLOAT16}


@pytest.mark.parametrize("name", ["rotary_keep", "sinusoidal"])
def test_fp16_distinguishes_late_positions(name: str, tmp_path: Path) -> None:
    """Past 2,048 half precision skips every other position."""
    small.graph(tmp_path / "g.onnx", name)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="fp16"))
    logits = []
    for path in ("g.onnx", "q.onnx"):
        decoder = Decoder(tmp_path / path)
        decoder.step(3)
        decoder.set_state({**decoder.state(), "position": np.array([4097], np.int32)})
        logits.append([decoder.step(token) for token in (3, 5)])
    np.testing.assert_allclose(logits[1], logits[0], atol=0.03 * np.abs(logits[0]).max())

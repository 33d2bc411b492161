"""Prefill graphs with quantized weights run on the provider, for every kind of positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import quantize
from t2r_runtime import Decoder

LEARNED = UniformConfig(
    vocab_size=71,
    width=64,
    ffn_size=96,
    layers=(LinearConfig(16, feature_map="relu"),),
    max_positions=50,
    tied_head=False,  # the optimizer moves the embedding's DequantizeLinear past a Reshape, and adds a QuantizeLinear
    attention=HeadsConfig(heads=4, kv_heads=2, head_size=16),
)
NONE = replace(LEARNED, position="none", max_positions=None)
SOFTMAX = replace(NONE, layers=(SoftmaxConfig(),))
CONFIGS = {
    "learned": LEARNED,
    "none": NONE,
    "sinusoidal": replace(NONE, position="sinusoidal"),
    "rotary": NONE.with_attention(positions=RotaryConfig()),
    "alibi": replace(SOFTMAX, position="alibi"),
    "t5": replace(SOFTMAX, position="t5"),
}
PROMPT = np.arange(40) * 7 % 71


@pytest.mark.parametrize("kind", CONFIGS)
def test_quantized_prompts(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = CONFIGS[kind]
    torch.manual_seed(1)
    checkpoint.save(tmp_path / "m.pt", Transformer(config.build()), None, {"origin": "random weights"})
    context = "64" if config.layers == SOFTMAX.layers else None
    whole, small = tmp_path / "whole.onnx", tmp_path / "small.onnx"
    export(checkpoint.load(tmp_path / "m.pt"), whole, ExportConfig(top_k=1, prefill=True, context=context))
    quantize(whole, small, QuantizeConfig(scheme="w4", head_bits=4))
    expected = Decoder(small).prefill(PROMPT)
    caplog.clear()
    np.testing.assert_allclose(Decoder(small, "t2r").prefill(PROMPT), expected, atol=1e-4)
    assert caplog.messages == []
    by_cpu = Decoder(small, "t2r", session_config={"session.disable_quant_qdq": "0"}).prefill(PROMPT)
    np.testing.assert_allclose(by_cpu, expected, atol=1e-4)
    (line,) = caplog.messages
    assert line.startswith("the prefill graph runs on cpu, not on t2r: ") and "QuantizeLinear" in line

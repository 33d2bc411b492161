"""Activations that int8 rounds too much: measured with ONNX Runtime's rounding, their products in float32."""

from __future__ import annotations

import dataclasses
import random
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
from t2r_export.quantize import quantize
from t2r_export.quantizers.activations import activation_errors, rounded
from t2r_export.quantizers.blocks import in_blocks
from t2r_export.quantizers.pairs import TokenPair
from t2r_export.quantizers.sensitivity import pair_passages, text_passages
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

WIDE = dataclasses.replace(small.GPT2, width=96, layers=(small.LINEAR,) * 2, vocab_size=50)
MASSIVE = "blocks.1.parts.1.up.weight"  # behind the scaled norm
FACTOR = 3000


def massive() -> Checkpoint:
    """A model with a channel of large activations before one product, which small weights compensate."""
    model = small.model(WIDE)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        parameters["blocks.1.norms.1.weight"][40] *= FACTOR
        parameters[MASSIVE][:, 40] /= FACTOR
    return Checkpoint(model.config, model, None, {}, "0" * 64)


def product(x: np.ndarray, matrix: np.ndarray, level: int) -> np.ndarray:
    """x @ matrix by MatMulNBits, in blocks of 32 with 8 bits."""
    rows, columns = matrix.shape
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", "numbers", "scales"],
        ["y"],
        domain="com.microsoft",
        K=rows,
        N=columns,
        bits=8,
        block_size=32,
        accuracy_level=level,
    )
    parts = zip(("numbers", "scales"), in_blocks(matrix, 8, 32, asymmetric=False), strict=True)
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info("x", 1, list(x.shape))],
        [onnx.helper.make_tensor_value_info("y", 1, [len(x), columns])],
        [onnx.numpy_helper.from_array(part, name) for name, part in parts],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made: np.ndarray = session.run(None, {"x": x})[0]
    return made


def test_rounding_is_that_of_matmul_nbits() -> None:
    chance = np.random.default_rng(0)
    x, matrix = (chance.normal(size=shape).astype(np.float32) for shape in ((5, 70), (70, 33)))
    x[:, 40] *= 50
    found, exact = product(x, matrix, 4), product(x, matrix, 0)
    expected = product(rounded(x, 32), matrix, 0)
    assert np.abs(found - expected).max() < 0.1 * np.abs(found - exact).max()
    assert not rounded(np.zeros((2, 40), np.float32), 32).any()


def test_error_is_found_where_it_is() -> None:
    checkpoint, tokens = massive(), np.random.default_rng(1).integers(0, WIDE.vocab_size, 1100)
    bundle, _ = build(checkpoint, ExportConfig())
    errors = activation_errors(bundle, text_passages(tokens, bundle.signature), QuantizeConfig(scheme="w8"))
    assert max(errors, key=errors.__getitem__) == MASSIVE
    assert errors[MASSIVE] > 3 * max(error for name, error in errors.items() if name != MASSIVE)


def test_padding_of_sources_is_not_measured() -> None:
    model, chance = small.model(small.translator()), random.Random(0)
    bundle, _ = build(Checkpoint(model.config, model, None, {}, "0" * 64), ExportConfig())
    pairs = [TokenPair([chance.randrange(7) for _ in range(size)], [3, 1, 2]) for size in (2, 7, 4)]
    config = QuantizeConfig(scheme="w8", block_size=16)
    together = activation_errors(bundle, pair_passages(pairs, bundle.signature), config)
    alone = [activation_errors(bundle, pair_passages([pair], bundle.signature), config) for pair in pairs]
    name = "encoder.blocks.0.parts.1.up.weight"
    assert min(each[name] for each in alone) * 0.5 < together[name] < max(each[name] for each in alone) * 2
    assert together.keys() == alone[0].keys() > {name}


def test_chosen_products_are_float32(tmp_path: Path) -> None:
    """They restore most of what int8 activations lose."""
    text, source = tmp_path / "text.npy", tmp_path / "g.onnx"
    tokens = np.random.default_rng(0).integers(0, WIDE.vocab_size, 1100)
    np.save(text, tokens)
    export(massive(), source, ExportConfig(prefill=True))
    config = QuantizeConfig(scheme="w8", activation_error=0.05, calibrate=text)
    report = quantize(source, tmp_path / "chosen.onnx", config)
    assert report.float_products == [MASSIVE]
    assert report.activation_errors[MASSIVE] > 0.05
    for file in report.files[:2]:
        if file.suffix == ".onnx":
            levels = levels_of(onnx.load(file, load_external_data=False))
            assert [name for name, level in levels.items() if level == 0] == [MASSIVE]
            assert set(levels.values()) == {0, 4}
    quantize(source, tmp_path / "int8.onnx", QuantizeConfig(scheme="w8"))
    quantize(source, tmp_path / "float.onnx", QuantizeConfig(scheme="w8", accuracy_level=0))
    logits = {name: read(tmp_path / f"{name}.onnx", tokens[:40]) for name in ("chosen", "int8", "float")}
    chosen, int8 = (np.abs(logits[name] - logits["float"]).max() for name in ("chosen", "int8"))
    assert chosen < 0.3 * int8


def levels_of(model: onnx.ModelProto) -> dict[str, int]:
    """Accuracy level of each product, by its weight's name."""
    found = {}
    for node in (node for node in model.graph.node if node.op_type == "MatMulNBits"):
        name = node.input[1].rsplit("_Q", 1)[0].removesuffix(".transposed")
        found[name] = {a.name: a.i for a in node.attribute}.get("accuracy_level", 0)
    return found


def read(graph: Path, tokens: np.ndarray) -> np.ndarray:
    decoder = Decoder(graph)
    decoder.reset(batch=1)
    return np.stack([decoder.step(tokens[i : i + 1])[0].copy() for i in range(len(tokens))])


def test_a_level_that_rounds_no_activations_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.npy"
    with pytest.raises(UserError, match="activation_error with accuracy_level 4, which rounds activations; received 0"):
        QuantizeConfig(scheme="w4", activation_error=0.1, accuracy_level=0, calibrate=text)
    with pytest.raises(UserError, match="a text to calibrate w4 on"):
        QuantizeConfig(scheme="w4", activation_error=0.1)

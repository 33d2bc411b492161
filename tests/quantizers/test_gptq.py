"""GPTQ: rounded in MatMulNBits' format, with less error of the outputs than rounding to the nearest value."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from quantizers.test_activations import read
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import build, export
from t2r_export.graph.bundle import Bundle
from t2r_export.quantize import export_quantized, quantize, quantized
from t2r_export.quantizers.activations import projection_inputs
from t2r_export.quantizers.base import head, projections
from t2r_export.quantizers.blocks import in_blocks, restored, unrounded
from t2r_export.quantizers.gptq import gptq, reader, rounded_blocks
from t2r_export.quantizers.pairs import TokenPair
from t2r_export.quantizers.sensitivity import Passage, pair_passages, text_passages
from t2r_runtime.errors import UserError

SHAPES = [(70, 33, 32, 4, False), (70, 33, 32, 4, True), (64, 21, 16, 8, False), (37, 9, 32, 8, True)]


def correlated(rows: int) -> np.ndarray:
    """Inputs (N, in) whose channels are correlated, one of which is always 0."""
    chance = np.random.default_rng(rows)
    x = (chance.normal(size=(300, rows)) @ chance.normal(size=(rows, rows))).astype(np.float32)
    x[:, 5] = 0
    return x


def moments(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = x.T.astype(np.float64) @ x
    return made


@pytest.mark.parametrize("rows, columns, size, bits, asymmetric", SHAPES)
def test_outputs_are_nearer(rows: int, columns: int, size: int, bits: int, asymmetric: bool) -> None:
    x, matrix = correlated(rows), np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    parts = rounded_blocks(matrix, moments(x), bits, size, asymmetric)
    usual = in_blocks(matrix, bits, size, asymmetric)
    assert [(part.shape, part.dtype) for part in parts] == [(part.shape, part.dtype) for part in usual]
    near, far = unrounded(parts, bits, rows), restored(matrix, bits, size, asymmetric)
    assert np.linalg.norm(x @ (matrix - near)) < 0.9 * np.linalg.norm(x @ (matrix - far))


@given(st.integers(1, 40), st.integers(1, 7), st.sampled_from([(4, False), (4, True), (8, False), (8, True)]))
@settings(max_examples=20)
def test_rounded_values_stay(rows: int, columns: int, how: tuple[int, bool]) -> None:
    """A matrix of values that its blocks can hold is not changed, whatever the inputs."""
    bits, asymmetric = how
    chance = np.random.default_rng(rows)
    matrix = restored(chance.normal(size=(rows, columns)).astype(np.float32), bits, 16, asymmetric)
    x = chance.normal(size=(5, rows))
    found = unrounded(rounded_blocks(matrix, moments(x), bits, 16, asymmetric), bits, rows)
    np.testing.assert_allclose(found, matrix, rtol=1e-5, atol=1e-6)


def test_zeros_and_no_inputs() -> None:
    for matrix in (np.zeros((20, 3), np.float32), np.ones((20, 3), np.float32)):
        for asymmetric in (False, True):
            found = unrounded(rounded_blocks(matrix, np.zeros((20, 20)), 4, 16, asymmetric), 4, 20)
            np.testing.assert_allclose(found, matrix, rtol=2**-11)  # scales are of float16


def loss(graph: Path, float32: Path, tokens: np.ndarray) -> float:
    """Mean squared difference of logits."""
    return float(np.square(read(graph, tokens) - read(float32, tokens)).mean())


def weights_of(file: Path) -> list[str]:
    graph = onnx.load(file, load_external_data=False).graph if file.suffix == ".onnx" else onnx.GraphProto()
    return [tensor.name for tensor in graph.initializer]


def test_graph_with_companion(tmp_path: Path) -> None:
    """The companion shares the weights, and the graph is nearer to the float32 one than that of nearest values."""
    config = dataclasses.replace(small.GPT2, width=96, layers=(small.LINEAR,) * 2, vocab_size=50)
    model, tokens = small.model(config), np.random.default_rng(0).integers(0, 50, 1100)
    np.save(tmp_path / "text.npy", tokens)
    source = tmp_path / "float32.onnx"
    export(Checkpoint(model.config, model, None, {}, "0" * 64), source, ExportConfig(prefill=True))
    made = {}
    for rounding in ("nearest", "gptq"):
        text = tmp_path / "text.npy" if rounding == "gptq" else None
        how = QuantizeConfig(scheme="w4", accuracy_level=0, rounding=rounding, calibrate=text)
        made[rounding] = quantize(source, tmp_path / f"{rounding}.onnx", how)
    names = [{name for file in report.files for name in weights_of(file)} for report in made.values()]
    assert names[0] == names[1]
    assert made["gptq"].bytes_after == made["nearest"].bytes_after
    near, far = (loss(tmp_path / f"{name}.onnx", source, tokens[:30]) for name in ("gptq", "nearest"))
    assert near < 0.8 * far


def test_translator(tmp_path: Path) -> None:
    """The encoder's weights are rounded by the inputs of sources."""
    model = small.model(small.translator())
    bundle, _ = build(Checkpoint(model.config, model, None, {}, "0" * 64), ExportConfig())
    chance = random.Random(0)
    pairs = [TokenPair([chance.randrange(7) for _ in range(size)], [3, 1, 2, 4]) for size in (2, 7, 4, 5)]
    found = gptq(bundle, pair_passages(pairs, bundle.signature), QuantizeConfig(scheme="w4", block_size=16))
    usual, _ = quantized(bundle, QuantizeConfig(scheme="w4", block_size=16))
    assert found.keys() < usual.weights.keys()
    assert any(name.startswith("encoder.") for name in found)
    assert any(not np.array_equal(found[name], usual.weights[name]) for name in found if name.startswith("encoder."))


def inputs_of(bundle: Bundle, passages: list[Passage]) -> dict[str, np.ndarray]:
    """Moments of the inputs of each weight but the head, as `gptq` reads them."""
    found = {}
    bundle, tokens = reader(bundle, passages)
    for graph, inputs in zip(bundle.halves, projection_inputs(bundle, passages, tokens), strict=True):
        sums = dict[str, np.ndarray]()
        for name, x in inputs.rows:
            sums[name] = sums.get(name, 0) + moments(x)
        found |= {node.input[1]: sums[node.input[0]] for node in projections(graph) if node.name != head(graph)}
    return found


@pytest.mark.parametrize("name", ["hybrid_sum", "lstm", "translator_cross_mixed"])
def test_prompts_are_read_as_steps(name: str) -> None:
    """A prefill graph reads the same inputs, without padding, if it has the same products."""
    model = small.model(small.MODELS[name])
    pairs = [TokenPair([5, 2, 6], [3, *[size % 7] * size]) for size in (40, 3, 9, 24)]
    tokens, found = np.random.default_rng(0).integers(0, model.config.vocab_size, 600), []
    for prefill in (False, True):
        bundle, _ = build(Checkpoint(model.config, model, None, {}, "0" * 64), ExportConfig(prefill=prefill))
        passages = text_passages(tokens, bundle.signature, 35) if model.encoder is None else []
        passages = passages or pair_passages(pairs, bundle.signature)
        assert (reader(bundle, passages)[1] is not None) == (prefill and name != "lstm")
        found.append(inputs_of(bundle, passages))
    assert found[0].keys() == found[1].keys()
    for weight, expected in found[0].items():
        np.testing.assert_allclose(found[1][weight], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_only_the_graphs_that_were_asked_for(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.arange(1100) % 17)
    config = QuantizeConfig(scheme="w4", rounding="gptq", calibrate=tmp_path / "text.npy")
    exported, report = export_quantized(small.checkpoint(), tmp_path / "q.onnx", ExportConfig(), config)
    assert not exported.signature.graphs
    assert not report.left_out


def test_a_text_is_needed() -> None:
    with pytest.raises(UserError, match="a text to calibrate w4 on; received none; name one with --calibrate"):
        QuantizeConfig(scheme="w4", rounding="gptq")

"""Bits under a budget: rounding as in the graph, choices within the budget."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
import texts
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.parts import MoEConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.quantize import OPTIONS_KEY, quantize
from t2r_export.quantizers.blocks import in_blocks, in_halves, restored
from t2r_export.quantizers.budget import CHOICES, Product, fitted, stored
from t2r_runtime import Decoder, Translator
from t2r_runtime.errors import UserError

# wide enough that blocks of 128 and of 32 are different
WIDE = dataclasses.replace(small.GPT2, width=160, layers=(small.LINEAR,), vocab_size=50)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_restored_equals_matmul_nbits(bits: int, asymmetric: bool, tmp_path: Path) -> None:
    matrix = np.random.default_rng(bits).normal(size=(70, 33)).astype(np.float32)
    parts = in_blocks(matrix, bits, 32, asymmetric)
    assert sum(part.nbytes for part in in_halves(parts)) == stored(matrix.shape, bits, 32, asymmetric, of_scale=2)
    names = ["numbers", "scales", "zero_points"][: len(parts)]
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=70, N=33, bits=bits, block_size=32
    )
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info("x", 1, [70, 70])],
        [onnx.helper.make_tensor_value_info("y", 1, [70, 33])],
        [onnx.numpy_helper.from_array(part, name) for part, name in zip(parts, names, strict=True)],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    import onnxruntime as ort

    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"x": np.eye(70, dtype=np.float32)})
    np.testing.assert_allclose(restored(matrix, bits, 32, asymmetric), y, rtol=1e-6, atol=1e-7)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1 << 20)), min_size=1, max_size=6),
    st.floats(0, 1),
)
def test_choice_fits_budget_without_needless_steps(matrices: list[tuple[int, int, int]], share: float) -> None:
    products = []
    for number, (rows, columns, seed) in enumerate(matrices):
        costs = np.sort(np.random.default_rng(seed).random(len(CHOICES)))
        products.append(Product(f"{number}", (rows, columns), tuple(costs)))
    most = sum(product.bytes(0) for product in products)
    least = sum(min(map(product.bytes, range(len(CHOICES)))) for product in products)
    room = int(least + share * (most - least))
    chosen = fitted(products, room, room)
    left = room - sum(product.bytes(chosen[product.name]) for product in products)
    assert left >= 0
    for product in products:
        cost, size = product.costs[chosen[product.name]], product.bytes(chosen[product.name])
        better = [n for n in range(len(CHOICES)) if product.costs[n] < cost]
        assert all(not 0 < product.bytes(n) - size <= left for n in better)
    if room == most:
        assert set(chosen.values()) == {0}
    with pytest.raises(UserError, match=f"a budget of at least {least:,} bytes"):
        fitted(products, least - 1, least - 1)


def test_sensitive_weights_keep_bits() -> None:
    dear, cheap = Product("dear", (128, 64), (0.0, 9.0, 9.0, 9.0, 9.0)), Product("cheap", (128, 64), (0.0,) * 5)
    room = dear.bytes(0) + cheap.bytes(len(CHOICES) - 1)
    assert fitted([dear, cheap], room, room) == {"dear": 0, "cheap": len(CHOICES) - 1}


def test_remaining_budget_is_spent() -> None:
    """The large product is rounded last, and leaves room to restore the bits of the small one."""
    large, small_one = Product("large", (1280, 64), (0.0, *[50.0] * 4)), Product("small", (128, 64), (0.0, *[1.0] * 4))
    least = len(CHOICES) - 1
    room = large.bytes(0) + small_one.bytes(least) - 1
    assert fitted([large, small_one], room, room) == {"large": least, "small": 0}


def as_rounded(graphs: Iterable[onnx.ModelProto]) -> dict[str, list[int]]:
    """Bits and block size of each product, by its weight's name."""
    found = {}
    for node in (node for graph in graphs for node in graph.graph.node if node.op_type == "MatMulNBits"):
        values = {a.name: a.i for a in node.attribute}
        found[node.input[1].rsplit("_Q", 1)[0].removesuffix(".transposed")] = [values["bits"], values["block_size"]]
    return found


def test_graph_uses_choices(tmp_path: Path) -> None:
    source, text = tmp_path / "g.onnx", tmp_path / "text.npy"
    small.graph(source, WIDE, prefill=True)
    np.save(text, np.random.default_rng(0).integers(0, WIDE.vocab_size, 1100))
    plain = quantize(source, tmp_path / "plain.onnx", QuantizeConfig(scheme="w4"))
    budget = int(plain.bytes_after * 1.1)  # some products have room for more than a block of 32
    report = quantize(source, tmp_path / "q.onnx", QuantizeConfig(scheme="w4", budget=budget, calibrate=text))
    assert report.bytes_after <= budget
    made = onnx.load(tmp_path / "q.onnx", load_external_data=False)
    notes = {p.key: p.value for p in made.metadata_props}
    choices = json.loads(notes[OPTIONS_KEY])["choices"]
    assert as_rounded([made]) == choices
    assert len({tuple(choice) for choice in choices.values()}) > 1
    decoder, prompt = Decoder(tmp_path / "q.onnx"), small.ids(1, 9, vocabulary=WIDE.vocab_size).numpy()
    whole = decoder.prefill(prompt)
    decoder.reset()
    for token in prompt[0]:
        stepped = decoder.step([token])
    np.testing.assert_allclose(whole, stepped, rtol=1e-3, atol=1e-3)


def test_experts_have_the_bits_of_the_scheme(tmp_path: Path) -> None:
    """Experts count as blocks of 4 bits, so that other products get no room that the budget lacks."""
    source, text = tmp_path / "g.onnx", tmp_path / "text.npy"
    small.graph(source, dataclasses.replace(WIDE, feed_forwards=(MoEConfig(experts=5, size=96, top=2),)))
    np.save(text, np.random.default_rng(0).integers(0, WIDE.vocab_size, 1100))
    budget = quantize(source, tmp_path / "plain.onnx", QuantizeConfig(scheme="w4")).bytes_after
    report = quantize(source, tmp_path / "q.onnx", QuantizeConfig(scheme="w4", budget=budget, calibrate=text))
    assert 0.95 * budget < report.bytes_after <= budget


def test_too_small_budget_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", WIDE)
    text = tmp_path / "text.npy"
    np.save(text, np.random.default_rng(0).integers(0, WIDE.vocab_size, 1100))
    with pytest.raises(UserError, match="expected a budget of at least .* received 1,000; raise the budget"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4", budget=1000, calibrate=text))
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.slow
def test_translator_budget_covers_both_graphs(tmp_path: Path) -> None:
    config = dataclasses.replace(
        small.translator(small.LINEAR_CROSS, source_vocabulary=None),
        **{"width": 160, "vocab_size": len(texts.LETTERS) + 2, "bos_token": None},
        **{"eos_tokens": (texts.EOS,), "start_tokens": (texts.BOS,)},
    )
    pairs, source = texts.write_words(tmp_path / "pairs.tsv", 150), tmp_path / "g.onnx"
    model = small.model(config)
    export(Checkpoint(config, model, texts.tokenizer(), {}, "0" * 64), source, ExportConfig())
    plain = quantize(source, tmp_path / "plain.onnx", QuantizeConfig(scheme="w4"))
    spent = QuantizeConfig(scheme="w4", budget=plain.bytes_after, calibrate=pairs)
    report = quantize(source, tmp_path / "q.onnx", spent, pairs)
    assert report.bytes_after <= plain.bytes_after
    assert report.quality is not None and report.quality.passed
    graphs = [onnx.load(file, load_external_data=False) for file in report.files if file.suffix == ".onnx"]
    choices = json.loads({p.key: p.value for p in graphs[0].metadata_props}[OPTIONS_KEY])["choices"]
    assert any(name.startswith("encoder.") for name in choices) and any(name.startswith("blocks.") for name in choices)
    assert as_rounded(graphs) == choices and len({tuple(choice) for choice in choices.values()}) > 1
    assert list(Translator(tmp_path / "q.onnx").translate([[1, 2, 3]]))

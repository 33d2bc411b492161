"""All schemes keep the graph's interface and states; a failed check writes nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import small
from small import VOCABULARY
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import Guard
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.config.targets import TARGETS
from t2r_export.errors import CheckFailed
from t2r_export.quality.quantization import QualityCheckFailed
from t2r_export.quantize import OPTIONS_KEY, export_quantized, quantize
from t2r_export.quantizers.base import Calibration, initializers, silence_ort
from t2r_export.quantizers.calibration import feeds
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

MODELS = ("learned", "sinusoidal", "rotary_keep", "rotary_drop", "hybrid")
CLOSE = {"fp16": 0.01, "int8": 0.3, "int8-static": 0.3, "w8": 0.3, "w4": 0.5}  # to the float32 graph, as median_error


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, VOCABULARY, 1100))
    return path


def config(scheme: str, tokens: Path, **options: Any) -> QuantizeConfig:
    if scheme == "int8-static":
        options = {"calibrate": tokens, "calibrate_steps": 30, **options}
    return QuantizeConfig(scheme=scheme, **options)


def forms(values: Any) -> list[tuple[str, int, list[str]]]:
    return [
        (v.name, v.type.tensor_type.elem_type, [d.dim_param or str(d.dim_value) for d in v.type.tensor_type.shape.dim])
        for v in values
    ]


def median_error(old: Decoder, new: Decoder, batch: int = 1) -> float:
    """Of the logits, relative to the largest. Where a random model's denominator comes near its guard, a little becomes
    a lot, which a median does not see."""
    for decoder in (old, new):
        decoder.reset(batch=batch)
    errors = []
    for ids in small.ids(batch, 20).T.numpy():
        expected = old.step(ids)
        errors.append(np.abs(new.step(ids) - expected).max() / np.abs(expected).max())
    return float(np.median(errors))


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
@pytest.mark.parametrize("name", ["learned", "rotary_keep"])  # a tied head, and one of its own
def test_sums_of_two_int8_products_fit_in_16_bits(name: str, scheme: str, tokens: Path, tmp_path: Path) -> None:
    """x86 CPUs without VNNI add two products of uint8 activations and int8 weights in 16 bits, which saturate."""
    source, out = tmp_path / "g.onnx", tmp_path / "q.onnx"
    small.graph(source, name)
    quantize(source, out, config(scheme, tokens))
    found = [t for t in onnx.load(out).graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2]
    largest = max(int(np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()) for tensor in found)
    assert 2 * 255 * largest < 2**15 < 2 * 255 * 65, largest  # 64, of 7 bits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_graph_has_same_interface(scheme: str, name: str, tokens: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "g.onnx", tmp_path / "q.onnx"
    small.graph(source, name)
    report = quantize(source, out, config(scheme, tokens))
    assert report.files == [out]
    before, after = onnx.load(source), onnx.load(out)
    for field in ("input", "output"):
        assert forms(getattr(before.graph, field)) == forms(getattr(after.graph, field)), "states keep their dtypes"
    opsets = {o.domain: o.version for o in after.opset_import}
    assert opsets.pop("com.microsoft", 1) == 1
    assert opsets == {o.domain: o.version for o in before.opset_import}
    assert (after.ir_version, after.producer_name) == (before.ir_version, before.producer_name)
    old, new = Decoder(source), Decoder(out)
    assert new.signature == dataclasses.replace(old.signature, quantization=scheme)
    assert 0 < median_error(old, new, batch=2) < CLOSE[scheme], "close, and not the float32 graph again"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.onnx", "q.onnx", "tokens.npy"]


@pytest.mark.parametrize("target", ["fused", "standard", "npu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_target(scheme: str, target: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_drop", target=target)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    old, new = Decoder(tmp_path / "g.onnx"), Decoder(tmp_path / "q.onnx")
    assert (new.signature.quantization, new.signature.target) == (scheme, target)
    assert 0 < median_error(old, new) < CLOSE[scheme]


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


def test_unreadable_graph_is_not_calibrated(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", target="standard")
    small.newer_opset(tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected an (opset|ONNX graph) that ONNX Runtime (reads|accepts)"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tokens))
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("scheme", ["int8-static", "w4"])
def test_ort_format(scheme: str, tokens: Path, tmp_path: Path) -> None:
    """The .ort is the quantized .onnx: what ONNX Runtime's optimizer does to the one it has done to the other."""
    made, options = small.checkpoint("learned"), config(scheme, tokens)
    export_quantized(made, tmp_path / "q.onnx", ExportConfig(), options)
    _, report = export_quantized(made, tmp_path / "q.ort", ExportConfig(), options)
    names = ["q.ort", "q.required_operators.config", "q.mobile.txt"]
    assert [file.name for file in report.files] == names
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*names, "q.onnx", "tokens.npy"])
    onnx_graph, ort_graph = Decoder(tmp_path / "q.onnx"), Decoder(tmp_path / "q.ort")
    assert onnx_graph.signature == ort_graph.signature
    for token in small.ids(1, 20)[0].numpy():
        np.testing.assert_allclose(ort_graph.step([token]), onnx_graph.step([token]), atol=1e-5)


def test_failed_check_writes_no_ort(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx")
    monkeypatch.setitem(SCHEMES, "w8", dataclasses.replace(SCHEMES["w8"], loss=-0.9))
    with pytest.raises(QualityCheckFailed, match=r"q.ort was not written: w8 takes nats/token"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.ort", QuantizeConfig(scheme="w8"), tokens)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.onnx", "tokens.npy"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_top_k_logits(scheme: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", top_k=3)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    one, other = (Decoder(tmp_path / "q.onnx", threads=1) for _ in range(2))
    for token in (3, 1, 4):
        logits, (values, places) = one.step(token), other.top_k([token])
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :3]
        np.testing.assert_array_equal(places, best)
        np.testing.assert_array_equal(values, np.take_along_axis(logits, best, -1))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_have_fewer_bits(scheme: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", dataclasses.replace(small.GPT2, ffn_size=512, width=64))
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    # scales, small vectors and the position table keep their bits; a graph has nothing else in float32
    assert report.bytes_after / report.bytes_before < SCHEMES[scheme].bits / 32 + 0.15


@pytest.mark.parametrize("layout", ["layers", "packed"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_states_are_not_rounded(scheme: str, layout: str, tokens: Path, tmp_path: Path) -> None:
    """At 4096 half precision counts in fours; what a step adds is less than that."""
    source, out = tmp_path / "g.onnx", tmp_path / "q.onnx"
    small.graph(source, "sinusoidal", state_layout=layout)
    quantize(source, out, config(scheme, tokens))
    moved = {}
    for path in (source, out):
        decoder = Decoder(path)
        start = {n: v + 4096 if v.dtype == np.float32 else v for n, v in decoder.state().items()}
        decoder.set_state(start)
        decoder.step(3)
        moved[path] = {n: v.astype(np.float64) - start[n] for n, v in decoder.state().items()}
    for name, step in moved[source].items():
        assert np.abs(step).max() > 0, name
        assert np.abs(moved[out][name] - step).max() < 0.3 * np.abs(step).max(), name


@pytest.mark.parametrize("guard", [Guard("clamp", 1e-6), Guard("add", 1e-3)])
def test_fp16_divides_by_guard_in_float32(guard: Guard, tmp_path: Path) -> None:
    """1e-6 is 9.5e-7 in half precision, and 1e-3 is shared with nothing that may round it."""
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


def test_quantize_is_deterministic(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    for scheme in SCHEMES:
        for out in ("1.onnx", "2.onnx"):
            quantize(tmp_path / "g.onnx", tmp_path / out, config(scheme, tokens))
        assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes(), scheme


def test_options_apply_to_graph(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4", block_size=16, accuracy_level=0))
    nodes = [n for n in onnx.load(tmp_path / "q.onnx").graph.node if n.op_type == "MatMulNBits"]
    found = [{a.name: a.i for a in n.attribute} for n in nodes]
    assert {a["block_size"] for a in found} == {16}
    assert not any("accuracy_level" in a for a in found), "0 is the operator's default"
    assert [n.name for n, a in zip(nodes, found, strict=True) if a["bits"] == 8] == ["embedding_gemm_Q8"], "the head"
    options = json.loads({p.key: p.value for p in onnx.load(tmp_path / "q.onnx").metadata_props}[OPTIONS_KEY])
    assert options == {"block_size": 16, "accuracy_level": 0}
    quantize(tmp_path / "g.onnx", tmp_path / "s.onnx", config("int8-static", tokens, activation_bits=16))
    types = {t.data_type for t in onnx.load(tmp_path / "s.onnx").graph.initializer}
    assert TensorProto.UINT16 in types
    Decoder(tmp_path / "s.onnx").step(1)


@pytest.mark.parametrize("name", ["learned", "rotary_drop"])  # a tied head, and one of its own
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


@pytest.mark.parametrize("bits, quantized", [(8, False), (16, True)])
def test_int8_static_keeps_its_products(bits: int, quantized: bool, tokens: Path, tmp_path: Path) -> None:
    """Kernels of integers are found by their neighbours: a node between a weight and its product hides it."""
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


def test_quantized_external_weights(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    inside = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"))
    expected = Decoder(tmp_path / "q.onnx").step(1)
    outside = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"), external_bytes=100)
    assert len(outside.files) == 2
    assert all(file.exists() for file in outside.files)
    assert outside.bytes_before == inside.bytes_before
    np.testing.assert_array_equal(Decoder(tmp_path / "q.onnx").step(1), expected)
    assert quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8")).files == [
        tmp_path / "q.onnx"
    ]
    assert not outside.files[1].exists(), "the weights of a graph that stood there before"


def test_calibration_uses_real_states(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "sinusoidal")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 400)
    seen = list(feeds(Calibration(tmp_path / "g.onnx", tokens, 50)))
    assert len(seen) == 50
    decoder = Decoder(tmp_path / "g.onnx")
    decoder.reset(batch=4)
    rows = np.stack([feed["input_ids"] for feed in seen], 1)
    np.testing.assert_array_equal(rows[0], tokens[:50])
    np.testing.assert_array_equal(rows[-1], tokens[-50:])
    for feed in seen:
        for name, value in decoder.state().items():
            np.testing.assert_array_equal(feed[f"past_{name}"], value)
        decoder.step(feed["input_ids"])


def test_calibration_needs_finite_logits(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "sinusoidal")
    model = onnx.load(tmp_path / "g.onnx")
    bias = initializers(model)["norm.bias"]
    bias.raw_data = np.full(bias.dims, 3e38, np.float32).tobytes()
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected finite logits on the calibration text; received NaN or inf"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tokens))


def test_calibration_limited_by_positions(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned", batch=3)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 400)
    seen = list(feeds(Calibration(tmp_path / "g.onnx", tokens, 50)))
    assert len(seen) == small.POSITIONS
    assert seen[0]["input_ids"].shape == (3,)


def test_check_measures(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    quality = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="fp16"), tokens).quality
    assert quality is not None
    assert quality.passed
    assert abs(quality.loss) < 0.005
    assert 0.9 < quality.greedy_agreement <= 1
    assert 0 < quality.worst_logits < 0.5
    assert quality.to_dict()["passed"]


def test_failed_check_writes_nothing(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that loses one weight."""

    def lossy(model: onnx.ModelProto, *_: Any) -> onnx.ModelProto:
        weight = initializers(model)["blocks.1.parts.1.down.weight"]
        weight.raw_data = b"\0" * len(weight.raw_data)
        bias = initializers(model)["norm.bias"]
        bias.CopyFrom(numpy_helper.from_array(9 * numpy_helper.to_array(bias), bias.name))
        return model

    small.graph(tmp_path / "g.onnx")
    (tmp_path / "q.onnx").write_bytes(b"what stood here before")
    monkeypatch.setattr("t2r_export.quantizers.blocks.blocks", lossy)
    for external in (0, 1 << 20):
        with pytest.raises(
            QualityCheckFailed, match=r"q.onnx was not written: w8 takes nats/token from \d.* of at most \+0.50%"
        ):
            quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"), tokens, external)
        assert (tmp_path / "q.onnx").read_bytes() == b"what stood here before"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["g.onnx", "q.onnx", "tokens.npy"]
    assert issubclass(QualityCheckFailed, CheckFailed)


def test_nan_fails_check(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: onnx.ModelProto, *_: Any) -> onnx.ModelProto:
        weight = initializers(model)["norm.bias"]
        weight.raw_data = np.full(weight.dims, np.nan, np.float32).tobytes()
        return model

    small.graph(tmp_path / "g.onnx")
    monkeypatch.setattr("t2r_export.quantizers.integers.dynamic", broken)
    with pytest.raises(QualityCheckFailed) as caught:
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="int8"), tokens)
    assert not caught.value.quality.passed
    assert np.isnan(caught.value.quality.worst_logits)


def test_export_quantized(tmp_path: Path) -> None:
    checkpoint = small.checkpoint("rotary_drop")
    exported, quantized = export_quantized(
        checkpoint, tmp_path / "q.onnx", ExportConfig(batch=3), QuantizeConfig(scheme="w8")
    )
    assert exported.files == quantized.files == [tmp_path / "q.onnx"] == list(tmp_path.iterdir())
    signature = Decoder(tmp_path / "q.onnx").signature
    assert (signature.quantization, signature.batch) == ("w8", 3)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"scheme": "int1"},
            "expected a scheme of fp16, int8, int8-static, w8, w4; received 'int1'; did you mean int8?",
        ),
        (
            {"scheme": "w4", "block_size": 33},
            "expected block_size to be one of 16, 32, 64, 128, 256; received 33; choose one of those for block_size",
        ),
        (
            {"scheme": "w4", "accuracy_level": 5},
            "expected accuracy_level to be one of 0, 1, 2, 3, 4; received 5; choose one of those for accuracy_level",
        ),
        (
            {"scheme": "int8-static", "activation_bits": 4},
            "expected activation_bits to be one of 8, 16; received 4; choose one of those for activation_bits",
        ),
        (
            {"scheme": "int8", "block_size": 32, "accuracy_level": 4, "calibrate": Path("x"), "activation_bits": 16},
            "expected options that int8 takes (none); received block_size, accuracy_level, calibrate, "
            "activation_bits; leave them out",
        ),
        (
            {"scheme": "int8-static", "asymmetric": True, "head_bits": 4, "embedding_bits": 8},
            "expected options that int8-static takes (calibrate_steps, activation_bits, calibrate); received "
            "asymmetric, head_bits, embedding_bits; leave them out",
        ),
        (
            {"scheme": "w4", "calibrate_steps": 3},
            "expected options that w4 takes (block_size, asymmetric, accuracy_level, head_bits, embedding_bits, "
            "budget); received calibrate_steps; leave them out",
        ),
        (
            {"scheme": "w4", "head_bits": 2},
            "expected head_bits to be one of 4, 8; received 2; choose one of those for head_bits",
        ),
        (
            {"scheme": "w4", "embedding_bits": 0},
            "expected embedding_bits to be one of 4, 8; received 0; choose one of those for embedding_bits",
        ),
        (
            {"scheme": "int8-static", "calibrate_steps": 0},
            "expected calibrate_steps to be an integer from 1 to 1048576; received 0; correct calibrate_steps",
        ),
        (
            {"scheme": "w4", "budget": "9x"},
            "expected a budget in bytes: 4096, 64k or 1.5M; received '9x'; correct the budget",
        ),
        ({"scheme": "w4", "budget": 9}, "expected a text to calibrate w4 on; received none; name one with --calibrate"),
        (
            {"scheme": "w8", "budget": 9},
            "expected options that w8 takes (block_size, asymmetric, accuracy_level, head_bits, embedding_bits, "
            "calibrate); received budget; leave them out",
        ),
        (
            {"scheme": "w4", "budget": 9, "head_bits": 4},
            "expected budget without block_size and head_bits; received both; leave one out",
        ),
        (
            {"scheme": "int8-static"},
            "expected a text to calibrate int8-static on; received none; name one with --calibrate",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    with pytest.raises(UserError) as caught:
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(**options))
    assert str(caught.value) == message
    assert not (tmp_path / "q.onnx").exists()


def test_quantized_graph_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"))
    with pytest.raises(UserError) as caught:
        quantize(tmp_path / "q.onnx", tmp_path / "r.onnx", QuantizeConfig(scheme="w4"))
    assert str(caught.value) == (
        "expected a float32 graph; received one that is quantized already, w8; quantize the float32 export"
    )


@pytest.mark.parametrize("content", [b"", b"no graph"])
def test_other_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(UserError, match="graph"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4"))
    with pytest.raises(UserError, match="which does not exist; check the path"):
        quantize(tmp_path / "none.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4"))


def test_short_calibration_text_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    np.save(tmp_path / "few.npy", np.ones(1023, int))
    with pytest.raises(UserError) as caught:
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tmp_path / "few.npy"))
    assert str(caught.value) == (
        f"expected a calibration text of at least 1024 tokens; received 1023 in {tmp_path / 'few.npy'}; "
        "name a longer one"
    )


def test_logging_is_restored() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.root.manager.disable)
    with silence_ort():
        import onnxruntime.quantization.matmul_nbits_quantizer  # noqa: F401
    assert (root.handlers[:], root.level, logging.root.manager.disable) == before

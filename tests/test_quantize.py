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
from quantized import CLOSE, ROUNDING, config, median_error, write_tokens
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.errors import CheckFailed
from t2r_export.graph.nodes import initializers
from t2r_export.quantize import OPTIONS_KEY, export_quantized, quantize
from t2r_export.quantizers.base import silence_ort
from t2r_export.quantizers.quality import QualityCheckFailed
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

MODELS = ("learned", "sinusoidal", "rotary_keep", "rotary_drop", "hybrid")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path)


def forms(values: Any) -> list[tuple[str, int, list[str]]]:
    return [
        (v.name, v.type.tensor_type.elem_type, [d.dim_param or str(d.dim_value) for d in v.type.tensor_type.shape.dim])
        for v in values
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", ROUNDING)
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
@pytest.mark.parametrize("scheme", ROUNDING)
def test_every_target(scheme: str, target: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_drop", target=target)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    old, new = Decoder(tmp_path / "g.onnx"), Decoder(tmp_path / "q.onnx")
    assert (new.signature.quantization, new.signature.target) == (scheme, target)
    assert 0 < median_error(old, new) < CLOSE[scheme]


@pytest.mark.parametrize("scheme", ["int8-static", "w4"])
def test_ort_format(scheme: str, tokens: Path, tmp_path: Path) -> None:
    """The .ort equals the quantized .onnx after ONNX Runtime's optimizer."""
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


@pytest.mark.parametrize("scheme", ROUNDING)
def test_quantized_top_k_logits(scheme: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", top_k=3)
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    one, other = (Decoder(tmp_path / "q.onnx", threads=1) for _ in range(2))
    for token in (3, 1, 4):
        logits, (values, places) = one.step(token), other.top_k([token])
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :3]
        np.testing.assert_array_equal(places, best)
        np.testing.assert_array_equal(values, np.take_along_axis(logits, best, -1))


@pytest.mark.parametrize("scheme", ROUNDING)
def test_weights_have_fewer_bits(scheme: str, tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", dataclasses.replace(small.GPT2, ffn_size=512, width=64))
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config(scheme, tokens))
    # scales, small vectors and the position table keep their bits; a graph has nothing else in float32
    assert report.bytes_after / report.bytes_before < SCHEMES[scheme].bits / 32 + 0.15


@pytest.mark.parametrize("layout", ["layers", "packed"])
@pytest.mark.parametrize("scheme", ROUNDING)
def test_states_are_not_rounded(scheme: str, layout: str, tokens: Path, tmp_path: Path) -> None:
    """At 4096, half precision has a spacing of four, more than the change of a step."""
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


def test_quantize_is_deterministic(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    for scheme in ROUNDING:
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


def test_check_measures(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    quality = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="fp16"), tokens).quality
    assert quality is not None
    assert quality.passed
    assert abs(quality.loss) < 0.005
    assert 0.9 < quality.greedy_agreement <= 1
    assert 0 < quality.worst_logits < 0.5
    assert quality.to_dict()["passed"]


def test_check_needs_a_token_per_row(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", small.ids(1, 300)[0].numpy())
    small.graph(tmp_path / "g.onnx", batch=400)
    with pytest.raises(UserError, match="a text of at least 400 tokens; received 300; name a longer one with --check"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"), tmp_path / "short.npy")


def test_failed_check_writes_nothing(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lossy scheme that zeroes one weight."""

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


def test_logging_is_restored() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.root.manager.disable)
    with silence_ort():
        import onnxruntime.quantization.matmul_nbits_quantizer  # noqa: F401
    assert (root.handlers[:], root.level, logging.root.manager.disable) == before

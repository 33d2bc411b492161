"""Translators: fold, export, encoder and step graphs, and detected faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import small
from cli_models import letter_tokenizer
from runtime.transformers_twin import assert_same
from small import TRANSLATORS
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli.description import text
from t2r_export.cli.reports import export_text
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.describe import describe
from t2r_export.export import ExportReport, export
from t2r_export.fold import FOLD_TOLERANCE, fold, places
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.proof.report import Report
from t2r_export.quantize import quantize
from t2r_runtime import Beam, Decoder, Tokenizer
from t2r_runtime.contract.signature import ENCODER
from t2r_runtime.errors import UserError
from t2r_runtime.translate.translator import Translator

names = pytest.mark.parametrize("name", TRANSLATORS)
STEPS = 30


def graph(folder: Path, name: str = "cross_linear", **options: Any) -> tuple[Checkpoint, ExportReport, Path]:
    folder.mkdir(exist_ok=True)
    path = folder / "g.onnx"
    return *small.graph(path, f"translator_{name}", **options), path


def encoder_file(path: Path) -> Path:
    return path.with_name(Decoder(path).signature.graphs[ENCODER])


@names
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_graphs_equal_model(name: str, target: str, tmp_path: Path) -> None:
    made, _, path = graph(tmp_path, name, target=target, prefill=True, top_k=3)
    report = small.proof(made, path, STEPS)
    assert report.passed, report.checks
    checks = {check.name for check in report.checks}
    assert {"encoder graph against eager, states", "source alone against padded, states"} <= checks


@torch.no_grad()
@names
def test_fold_preserves_output(name: str) -> None:
    made = small.model(TRANSLATORS[name]).double()
    folded, report = fold(made.float())
    assert [f.group for f in report] == [place.part.config.group for place in places(made)]
    linear = [place.part.config.label == "linear" for place in places(made)]
    assert [f.folded for f in report] == linear
    assert all(f.error <= FOLD_TOLERANCE for f in report if f.error is not None)
    made, folded = made.double(), folded.double()
    wanted, found = (m.prefill(small.ids(), m.start(*small.sources()))[0] for m in (made, folded))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_graph_has_tokenizer_of_each_side(tmp_path: Path) -> None:
    made = small.checkpoint("translator_cross_linear")
    texts = {"tokenizer": letter_tokenizer("abcd"), "source_tokenizer": letter_tokenizer("dcba")}
    export(dataclasses.replace(made, **texts), tmp_path / "g.onnx")
    signature = Decoder(tmp_path / "g.onnx").signature
    assert Tokenizer.of(signature).encode("ad") == Tokenizer(texts["tokenizer"]).encode("ad")
    assert Tokenizer.of_source(signature).encode("ad") == Tokenizer(texts["source_tokenizer"]).encode("ad")
    assert Tokenizer.of(signature).encode("ad") != Tokenizer.of_source(signature).encode("ad")


def test_encoder_outputs_are_step_inputs(tmp_path: Path) -> None:
    """The contract by hand: encode, reset, read the start token, continue."""
    made, report, path = graph(tmp_path, "cross_mixed")
    signature = report.signature
    assert signature.source is not None and signature.source.start_tokens == (3,)
    source, lengths = small.sources(1, 5)
    encoder, step = ort.InferenceSession(encoder_file(path)), ort.InferenceSession(path)
    names = [output.name for output in encoder.get_outputs()]
    states = dict(
        zip(names, encoder.run(None, {"source_ids": source.numpy(), "source_lengths": lengths.numpy()}), strict=True)
    )
    assert sorted(names) == sorted(spec.name for spec in signature.constant)
    fed = {s.past: np.full(s.dims(1), s.initial, s.dtype) for s in signature.chained}
    logits = step.run(["logits"], {"input_ids": np.array([3]), **fed, **states})[0]
    expected, _ = made.model.step(torch.tensor([3]), made.model.start(source, lengths))
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("scheme, steps", [("int8", 8), ("w8", 8), ("w4", 8), ("fp16", 8)])
def test_quantized(scheme: str, steps: int, tmp_path: Path) -> None:
    made, _, path = graph(tmp_path, prefill=True)
    out = tmp_path / "q.onnx"
    quantize(path, out, QuantizeConfig(scheme=scheme))
    small.proof(made, out, steps)  # it runs; so small a model may be inaccurate
    exact, rounded = (Translator(p).encode([[1, 2, 3], [4]]) for p in (path, out))
    worst = max(
        float(np.abs(exact[n] - rounded[n]).max() / np.abs(exact[n]).max()) for n in exact if n.startswith("source")
    )
    assert 0 < worst < 0.5


# -- packed states


@pytest.mark.parametrize("name", ["cross_linear", "merged", "merged_gated", "encoder_linear"])
def test_packed_states(name: str, tmp_path: Path) -> None:
    """Including states started by the encoder and those of the source, in all companion graphs."""
    made, report, path = graph(tmp_path, name, state_layout="packed", prefill=True)
    proof = small.proof(made, path, STEPS)
    assert proof.passed, proof.checks
    signature, names = report.signature, {spec.name for spec in made.model.state_spec()}
    assert {spec.name for spec in signature.states} == {name.partition(".")[0] for name in names}
    assert signature.source is not None
    assert signature.source.start_states == tuple(dict.fromkeys(n.partition(".")[0] for n in made.model.start_states))
    graph(tmp_path / "apart", name)
    packed, apart = Translator(path, threads=1), Translator(tmp_path / "apart" / "g.onnx", threads=1)
    beam, sources = Beam(3, n_best=3, max_tokens=9), [[1, 2, 3], [4], [6, 1]]
    expected = list(apart.translate(sources, beam))
    assert_same(list(packed.translate(sources, beam)), expected)


def test_packed_source_caches(tmp_path: Path) -> None:
    made, report, path = graph(tmp_path, "softmax", state_layout="packed")
    assert small.proof(made, path, STEPS).passed
    shapes = {spec.name: spec.shape for spec in report.signature.states}
    assert shapes["source_k"] == ("B", 2, 3, "M", 4) and shapes["k"] == ("B", 2, 3, "T", 4)


def test_mixed_start_states_are_not_packed(tmp_path: Path) -> None:
    crosses = (MergeConfig(), small.LINEAR_CROSS)
    made = small.checkpoint(dataclasses.replace(TRANSLATORS["merged"], crosses=crosses))
    with pytest.raises(UserError, match="all or none of the states to pack into S to start from the source; rec"):
        export(made, tmp_path / "g.onnx", ExportConfig(state_layout="packed"))


# -- sources of one length


@pytest.mark.parametrize("target", ["portable", "npu"])
@pytest.mark.parametrize("name", ["cross_linear", "cross_normed", "cross_shared", "merged", "encoder_linear"])
def test_padded_sources(name: str, target: str, tmp_path: Path) -> None:
    made, _, path = graph(tmp_path, name, source_length=11, target=target)
    assert small.proof(made, path, STEPS).passed
    graph(tmp_path / "free", name)
    translator, free = Translator(path, threads=1), Translator(tmp_path / "free" / "g.onnx", threads=1)
    assert translator.source.source_length == translator.source.max_source == 11
    for source in ([4], [5, 1, 2, 9], list(range(11))):
        assert translator.generate(source, 9) == free.generate(source, 9)
    with pytest.raises(UserError, match="a source of at most 11 tokens; received 12"):
        translator.encode([[1] * 12])
    encoder = onnx.load(encoder_file(path), load_external_data=False)
    sizes = [[d.dim_value or d.dim_param for d in x.type.tensor_type.shape.dim] for x in encoder.graph.input]
    assert sizes == [[1, 11], [1]] if target == "npu" else sizes == [["B", 11], ["B"]]


def test_sources_of_equal_length(tmp_path: Path) -> None:
    """Softmax over the source keeps the keys of all 11 tokens."""
    made, report, path = graph(tmp_path, "softmax", source_length=11)
    assert small.proof(made, path, STEPS).passed
    assert {spec.shape for spec in report.signature.constant if spec.name.startswith("source_k")} == {("B", 3, 11, 4)}
    graph(tmp_path / "free", "softmax")
    translator, free = Translator(path, threads=1), Translator(tmp_path / "free" / "g.onnx", threads=1)
    sources = [[4], [5, 1, 2, 9], list(range(11))]
    beam = Beam(3, n_best=3, max_tokens=9)
    assert_same(list(translator.translate(sources, beam)), list(free.translate(sources, beam)))


def test_inspect_cross_attention(tmp_path: Path) -> None:
    made, report, path = graph(tmp_path, "encoder_linear")
    checkpoint.save(tmp_path / "m.pt", made.model, None, {})
    for file, status in ((tmp_path / "m.pt", "not folded yet: export folds it"), (path, "folded")):
        found = describe(file)
        assert found.sources == [(("linear", small.LINEAR_CROSS.summary(), status), layer) for layer in range(2)]
        assert "at the source" in text(found)
    assert describe(tmp_path / "m.pt").details["encoder"].startswith("2 layers of linear, feature_size=6")
    assert describe(path).details["source"]["longest"] == small.M + 5
    shown = export_text(report, {"g.onnx": 5})
    assert "layers 0-1: folded\nat the source, layers 0-1: folded\nencoder, layers 0-1: folded" in shown
    small.graph(tmp_path / "plain.onnx")
    assert describe(tmp_path / "plain.onnx").sources == []


# -- faults that verification must detect


def swapped_layers(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [{"source_S.0": "source_S.1", "source_S.1": "source_S.0"}.get(n, n) for n in names]


def swapped_rows(model: onnx.ModelProto) -> None:
    """Reverse the rows of the first state."""
    for node in model.graph.node:
        node.output[:] = ["in_order" if n == "source_S.0" else n for n in node.output]
    values = [("starts", [-1]), ("ends", [-(2**31)]), ("axes", [0]), ("steps", [-1])]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(v), n) for n, v in values)
    model.graph.node.append(onnx.helper.make_node("Slice", ["in_order", *(n for n, _ in values)], ["source_S.0"]))


def counted_padding(model: onnx.ModelProto) -> None:
    """Mask only the first place after a source's end; later padding counts as tokens."""
    for node in model.graph.node:
        if node.op_type == "GreaterOrEqual":
            node.op_type = "Equal"


def test_zero_start_state_is_detected(tmp_path: Path) -> None:
    """A merged layer has no other states of the source."""

    def zeroed(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.output[:] = ["started" if n == "present_S.0" else n for n in node.output]
        model.graph.node.append(onnx.helper.make_node("Sub", ["started", "started"], ["present_S.0"]))

    failed = {check.name for check in broken(tmp_path, zeroed, encoder=True, name="merged").checks if not check.passed}
    assert failed == {"encoder graph against eager, states"}


@pytest.mark.parametrize("fault", [swapped_layers, swapped_rows, counted_padding])
def test_encoder_fault_is_detected(fault: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    failed = {check.name for check in broken(tmp_path, fault, encoder=True).checks if not check.passed}
    assert "encoder graph against eager, states" in failed
    assert ("source alone against padded, states" in failed) == (fault is not swapped_layers)


def test_swapped_sources_are_detected(tmp_path: Path) -> None:
    assert not broken(tmp_path, swapped_layers, encoder=False).passed


def broken(folder: Path, fault: Callable[[onnx.ModelProto], None], encoder: bool, name: str = "cross_linear") -> Report:
    made, _, path = graph(folder, name)
    file = encoder_file(path) if encoder else path
    model = onnx.load(file, load_external_data=False)
    fault(model)
    onnx.save(model, file)
    return small.proof(made, path, STEPS)


# -- refused options


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"target": "npu"},
            "every source with target npu, where every dimension is a number; received none; add --source-length M",
        ),
    ],
)
def test_unsupported_translator_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = small.checkpoint("translator_cross_linear")
    with pytest.raises(UserError, match=message):
        export(made, tmp_path / "g.onnx", ExportConfig(**options))
    with pytest.raises(UserError, match="an .onnx, that shares its weights with the encoder graph"):
        export(made, tmp_path / "g.ort", ExportConfig())
    assert list(tmp_path.iterdir()) == []


def test_invalid_source_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a translator with --source-length; received a decoder alone; leave --"):
        export(small.checkpoint("learned"), tmp_path / "g.onnx", ExportConfig(source_length=8))
    with pytest.raises(UserError, match=f"at most {small.M + 5}, where the encoder's positions end; received 15"):
        export(small.checkpoint("translator_cross_normed"), tmp_path / "g.onnx", ExportConfig(source_length=15))
    for length in (0, 1 << 30):
        with pytest.raises(UserError, match="source_length to be an integer from 1 to 1048576; received"):
            ExportConfig(source_length=length)

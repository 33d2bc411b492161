"""Calibration and checks of translators on pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import small
import texts
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.positions import LearnedConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.data.pairs import write_pairs
from t2r_export.export import export
from t2r_export.quantize import export_quantized, quantize
from t2r_export.quantizers.base import Calibration
from t2r_export.quantizers.calibration import sources, targets
from t2r_export.quantizers.pairs import read_token_pairs, side_by_side
from t2r_export.quantizers.quality import QualityCheckFailed
from t2r_runtime import Translator
from t2r_runtime.errors import UserError

TRANSLATOR = dataclasses.replace(
    small.translator(small.LINEAR_CROSS, source_vocabulary=None),
    vocab_size=len(texts.LETTERS) + 2,
    bos_token=None,
    eos_tokens=(texts.EOS,),
    start_tokens=(texts.BOS, texts.EOS),
)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return texts.write_words(tmp_path / "pairs.tsv", 90)


@pytest.fixture
def made() -> Checkpoint:
    model = small.model(TRANSLATOR)
    return Checkpoint(model.config, model, texts.tokenizer(), {}, "0" * 64)


@pytest.mark.parametrize("batch", [None, 1])
def test_pairs_are_read_with_teacher_forcing(batch: int | None, pairs: Path, made: Checkpoint, tmp_path: Path) -> None:
    """Each set of inputs has the states and source states that the graph has reached; none is padded."""
    export(made, tmp_path / "g.onnx", ExportConfig(batch=batch))
    translator = Translator(tmp_path / "g.onnx", threads=1)
    read = read_token_pairs(pairs, translator.signature, 20)
    assert len(read) == 20
    assert all(pair.target[:2] == [texts.BOS, texts.EOS] and pair.target[-1] == texts.EOS for pair in read)
    calibration = Calibration(tmp_path / "g.onnx", np.empty(0, np.int64), 60, read)
    groups = list(side_by_side(read, batch))
    found, steps = list(targets(calibration)), sum(int(group.lengths.min()) - 1 for group in groups)
    assert 30 <= len(found) <= 90 < steps or batch is None
    decoder = translator.start(groups[0].sources)
    for feed, ids in zip(found, groups[0].targets.T[: groups[0].lengths.min() - 1], strict=False):
        np.testing.assert_array_equal(feed["input_ids"], ids)
        for spec in translator.signature.states:
            np.testing.assert_array_equal(feed[spec.past], decoder.state()[spec.name])
        decoder.step(ids)
    encoded = list(sources(calibration))
    assert [feed["source_ids"].tolist() for feed in encoded] == [[p.source] for p in sorted(read, key=_length)]


def _length(pair: object) -> int:
    return len(pair.target)  # type: ignore[attr-defined]


@pytest.mark.parametrize("in_one_go", [False, True])
def test_int8_static(in_one_go: bool, pairs: Path, made: Checkpoint, tmp_path: Path) -> None:
    """Step and encoder: checks of the proof, and the loss on pairs."""
    options, config = ExportConfig(), QuantizeConfig(scheme="int8-static", calibrate=pairs, calibrate_steps=60)
    if in_one_go:
        _, report = export_quantized(made, tmp_path / "q.onnx", options, config, pairs)
    else:
        export(made, tmp_path / "g.onnx", options)
        report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config, pairs)
    for file in (file for file in report.files if file.suffix == ".onnx"):
        operators = {node.op_type for node in onnx.load(file, load_external_data=False).graph.node}
        assert {"QuantizeLinear", "DequantizeLinear"} <= operators, file
    assert small.proof(made, tmp_path / "q.onnx", 8)
    assert report.quality is not None and report.quality.passed
    assert 0 < report.quality.worst_logits < 3


def test_check_reports_nats_of_model(pairs: Path, made: Checkpoint, tmp_path: Path) -> None:
    export(made, tmp_path / "g.onnx", ExportConfig())
    quality = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"), pairs).quality
    assert quality is not None
    read, total, count = read_token_pairs(pairs, Translator(tmp_path / "g.onnx").signature, 512), 0.0, 0
    for pair in read:
        start = made.model.start(torch.tensor([pair.source]), torch.tensor([len(pair.source)]))
        with torch.no_grad():
            logits, _ = made.model.prefill(torch.tensor([pair.target[:-1]]), start)
        then = torch.tensor(pair.target[2:])  # behind the start tokens
        total += float(torch.nn.functional.cross_entropy(logits[0, 1:], then, reduction="sum"))
        count += len(then)
    # 90 pairs do not fill whole groups: some of them count twice
    assert quality.nats_before == pytest.approx(total / count, rel=0.02)
    assert quality.tokens >= count


def test_failed_check_writes_nothing(
    pairs: Path, made: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(made, tmp_path / "g.onnx", ExportConfig())
    stood = sorted(tmp_path.iterdir())
    monkeypatch.setitem(SCHEMES, "w8", dataclasses.replace(SCHEMES["w8"], loss=-0.9))
    with pytest.raises(QualityCheckFailed, match=r"q.onnx was not written: w8 takes nats/token"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"), pairs)
    assert sorted(tmp_path.iterdir()) == stood


Write = Callable[[Path], object]


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda path: write_pairs(path, [("ab", "ba")]), "a calibration text of at least 1024 tokens; received 5 in"),
        (lambda path: path.write_text("ab\n"), "a source, a tab and its translation in every line"),
        (lambda path: write_pairs(path, [("a" * 99, "b" * 99)] * 50), "pairs within the model's positions"),
    ],
)
def test_unusable_pairs_are_refused(write: Write, message: str, made: Checkpoint, tmp_path: Path) -> None:
    assert made.config.encoder is not None
    encoder = dataclasses.replace(made.config.encoder, positions=LearnedConfig(30))
    config = dataclasses.replace(made.config, positions=LearnedConfig(40), encoder=encoder)
    model = small.model(config)
    export(Checkpoint(config, model, texts.tokenizer(), {}, "0" * 64), tmp_path / "g.onnx", ExportConfig())
    write(tmp_path / "pairs.tsv")
    static = QuantizeConfig(scheme="int8-static", calibrate=tmp_path / "pairs.tsv")
    with pytest.raises(UserError, match=message):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", static)
    budget = QuantizeConfig(scheme="w4", calibrate=tmp_path / "pairs.tsv", budget=99)
    with pytest.raises(UserError, match=message):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", budget)

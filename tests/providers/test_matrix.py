"""The parity matrix: measured cells, reasons, failures, merging."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import small
from cli_models import Output, run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import MIN_CALIBRATION
from t2r_export.export import export
from t2r_export.providers import matrix as parity_matrix
from t2r_export.providers.graphs import PROVIDER_GRAPHS, ProviderGraph
from t2r_export.providers.matrix import PRECISIONS, Cell, Matrix, calibration_text, read_matrix
from t2r_export.providers.subprocess import Remote
from t2r_runtime import PROVIDERS, Decoder, Translator, UserError
from t2r_runtime.session.providers import versions

# rows of 16 numbers: block-wise weights are rounded as in a model, without padding
CONFIG = dataclasses.replace(small.GPT2, width=16, layers=(small.LINEAR,))
QUICK = ("--provider", "cpu", "--provider", "nnapi", "--steps", 3, "--precision", "none", "--precision", "w8")


class Local(Decoder):
    """A decoder in this process in place of a remote one."""

    def __init__(self, kind: type, _: str, *arguments: Any, **options: Any) -> None:
        assert kind is Decoder
        super().__init__(*arguments, **options)

    def close(self) -> None:
        pass


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_matrix, "Remote", Local)
    monkeypatch.setattr(parity_matrix, "remote_versions", lambda _, provider: versions(provider))


def saved(path: Path, config: ModelConfig = CONFIG, seed: int = 0) -> Path:
    checkpoint.save(path, small.model(config, seed), None, {})
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "m.pt")


def matrix(model: Path, *providers: str, precisions: tuple[str, ...] = ("none",), **options: Any) -> Matrix:
    return parity_matrix.parity_matrix(checkpoint.load(model), providers, precisions, 3, **options)


@pytest.mark.usefixtures("local")
def test_every_precision_on_cpu(model: Path) -> None:
    seen: list[Cell] = []
    made = matrix(model, "cpu", precisions=PRECISIONS, on_progress=seen.append)
    assert [cell.precision for cell in made.cells] == list(PRECISIONS)
    assert seen == list(made.cells)
    assert made.versions == {"cpu": {"onnxruntime": ort.__version__}}
    for cell in made.cells:
        assert cell.reason is None, cell
        assert cell.steps == 3 and cell.placement.keys() == {"cpu"} and 0 <= cell.greedy <= 1
        assert cell.exact == (cell.precision == "none")
    exact, *coarse = made.cells
    assert exact.passed and 0 < exact.logits < 1e-4 and 0 < exact.state < 1e-5
    assert all(cell.logits > exact.logits for cell in coarse)


@pytest.mark.slow
def test_translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder runs on the provider of the step graph, with a fixed source length where the provider needs one."""
    model = saved(tmp_path / "m.pt", small.MODELS["translator_cross_normed"])
    numbers = dataclasses.replace(PROVIDER_GRAPHS["cpu"], config=PROVIDER_GRAPHS["xnnpack"].config)
    asked: list[Remote] = []

    class Seen(Remote):
        def __init__(self, kind: type, *arguments: Any, **options: Any) -> None:
            super().__init__(kind, *arguments, **options)
            if kind is Translator:
                asked.append(self)

    monkeypatch.setattr(parity_matrix, "Remote", Seen)
    for form, length in ((PROVIDER_GRAPHS["cpu"], None), (numbers, small.M + 5)):
        monkeypatch.setitem(PROVIDER_GRAPHS, "cpu", form)
        (cell,) = matrix(model, "cpu").cells
        assert cell.reason is None and cell.passed, cell
        source = asked.pop().signature.source
        assert source is not None and source.source_length == length and not asked
    (cell,) = matrix(model, "cpu", precisions=("int8-static",)).cells
    assert cell.reason is not None and "translator" in cell.reason


def test_text(model: Path, capsys: Output) -> None:
    out, error = run(capsys, "verify", model, *QUICK)
    head, line, cpu, nnapi, blank, reason, found = out.splitlines()
    assert (head, line) == ("| provider | none | w8 |", "| --- | --- | --- |")
    assert cpu.startswith("| cpu | ") and cpu.endswith("% |")
    assert nnapi == "| nnapi | (1) | (1) |"
    assert blank == ""
    assert reason == f"- (1) expected an ONNX Runtime with NnapiExecutionProvider: {PROVIDERS['nnapi'].install}"
    assert found == f"- cpu: onnxruntime {ort.__version__}, 3 steps"
    assert error.startswith("cpu, none: ") and len(error.splitlines()) == 2


@pytest.mark.usefixtures("local")
def test_json_and_merge(model: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = run(capsys, "verify", model, *QUICK, "--json")
    said = json.loads(out)
    assert said["checkpoint_sha256"] == checkpoint.load(model).sha256
    assert [(cell["provider"], cell["reason"] is None) for cell in said["cells"]] == [
        ("cpu", True),
        ("cpu", True),
        ("nnapi", False),
        ("nnapi", False),
    ]
    (tmp_path / "cpu.json").write_text(out)
    # cells measured elsewhere are not measured again, and precede the reason given here
    elsewhere = {**said, "versions": {"nnapi": {"onnxruntime": "9.9"}}}
    elsewhere["cells"] = [
        {**said["cells"][0], "provider": "nnapi", "logits": None, "placement": {"nnapi": 4, "cpu": 1}}
    ]
    (tmp_path / "phone.json").write_text(json.dumps(elsewhere))
    monkeypatch.setattr(parity_matrix, "verify", None)
    merged = ("--merge", tmp_path / "cpu.json", "--merge", tmp_path / "phone.json")
    out, error = run(capsys, "verify", model, *QUICK, *merged)
    assert error == ""
    assert out.splitlines()[3].startswith("| nnapi | nan, ")
    assert out.splitlines()[3].endswith(" (1) |")
    assert out.splitlines()[-1] == "- nnapi: onnxruntime 9.9, 3 steps; nodes there: none 4 of 5"


@pytest.mark.usefixtures("local")
def test_faulty_graph_fails(model: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    other = checkpoint.load(saved(tmp_path / "other.pt", seed=1))
    monkeypatch.setattr(parity_matrix, "export", lambda _, *rest: export(other, *rest))
    out, error = run(capsys, "verify", model, *QUICK, "--json", code=1)
    first = json.loads(out)["cells"][0]
    assert not first["passed"] and first["reason"] is None and first["logits"] > 0.1
    out, error = run(capsys, "verify", model, *QUICK, "--precision", "none", code=1)
    assert " FAILED" in out
    assert "t2r: check failed: cpu with none" in error


@pytest.mark.usefixtures("local")
def test_nan_fails(model: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parity_matrix.verify

    def broken(*arguments: Any, **options: Any) -> Any:
        report = real(*arguments, **options)
        report.checks[2] = dataclasses.replace(report.checks[2], worst=math.nan)
        return report

    monkeypatch.setattr(parity_matrix, "verify", broken)
    (cell,) = matrix(model, "cpu").cells
    assert math.isnan(cell.logits) and not cell.passed


def test_reasons(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(path: Path, wanted: ProviderGraph | None = None, **options: Any) -> str:
        if wanted is not None:
            monkeypatch.setitem(PROVIDER_GRAPHS, "cpu", wanted)
        (cell,) = matrix(path, "cpu", **options).cells
        assert cell.reason is not None and not cell.passed
        return cell.reason

    teacher = saved(tmp_path / "teacher.pt", small.CONFIGS["softmax"])
    wanted = PROVIDER_GRAPHS["cpu"]
    assert (
        reason(teacher, dataclasses.replace(wanted, growing=False)) == "takes no caches that grow: convert every layer"
    )
    assert reason(teacher, dataclasses.replace(PROVIDER_GRAPHS["dnnl"], growing=True)).startswith(
        "expected states of constant size for target npu"
    )
    monkeypatch.setitem(PROVIDER_GRAPHS, "cpu", wanted)
    dead = f"{sys.executable} -c 'import os; os.abort()'"
    assert reason(model, pythons={"cpu": dead}) == "expected an answer from the provider: see docs/providers.md"
    monkeypatch.setattr(parity_matrix, "remote_versions", lambda *_: {})
    assert reason(model, pythons={"cpu": dead}) == (
        "expected an answer from the provider; received the end of its process: SIGABRT"
    )


@pytest.mark.usefixtures("local")
def test_partial_cell_needs_allow_fallback(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    class Shared(Local):
        def __init__(self, *arguments: Any, allow_fallback: bool, **options: Any) -> None:
            allowed.append(allow_fallback)
            super().__init__(*arguments, **options)
            if not allow_fallback:
                raise UserError("every node on cpu", "1 of 3 on another provider", "allow fallback")

        placement = {"cpu": 2, "dnnl": 1}  # type: ignore[assignment]

    monkeypatch.setattr(parity_matrix, "Remote", Shared)
    (cell,) = matrix(model, "cpu").cells
    assert cell.reason == "expected every node on cpu; received 1 of 3 on another provider"
    (cell,) = matrix(
        model, "cpu", allow_fallback=True, earlier=[Matrix(checkpoint.load(model).sha256, {}, [cell])]
    ).cells
    assert (cell.reason, cell.placement, cell.passed) == (None, {"cpu": 2, "dnnl": 1}, True)
    assert allowed == [False, True]


def test_bad_input(model: Path, tmp_path: Path, capsys: Output) -> None:
    def refused(*options: object) -> str:
        return run(capsys, "verify", model, *options, code=2)[1]

    assert refused("--provider", "tpu").startswith("t2r: expected a provider of: cpu, t2r, cuda, ")
    assert refused("--precision", "w2").startswith("t2r: expected a scheme of fp16, ")
    assert refused("--python", "cpu") == "t2r: expected PROVIDER=COMMAND for --python; received 'cpu'; correct it\n"
    np.save(tmp_path / "few.npy", np.ones(3, int))
    few = ("--provider", "cpu", "--precision", "int8-static", "--calibrate", tmp_path / "few.npy")
    assert refused(*few).startswith("t2r: expected a calibration text of at least 1024 tokens; received 3 in ")
    assert "missing.json, which does not exist; " in refused("--merge", tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text('{"cells": [{}]}')
    assert "bad.json; received KeyError: 'logits'; write it again" in refused("--merge", tmp_path / "bad.json")
    cell = {**vars(Cell("tpu", "none")), "logits": None, "state": None, "greedy": None}
    (tmp_path / "new.json").write_text(json.dumps({"checkpoint_sha256": "", "versions": {}, "cells": [cell]}))
    assert "received an unknown provider or precision" in refused("--merge", tmp_path / "new.json")
    with pytest.raises(UserError, match="a matrix of the same checkpoint to merge; received another checkpoint's"):
        matrix(model, "cpu", earlier=[Matrix("0" * 64, {}, [])])


@pytest.mark.usefixtures("local")
def test_matrix_round_trip(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, _ = run(capsys, "verify", model, *QUICK, "--json")
    (tmp_path / "m.json").write_text(out)
    read = read_matrix(tmp_path / "m.json")
    assert [cell.provider for cell in read.cells] == ["cpu", "cpu", "nnapi", "nnapi"]
    assert math.isnan(read.cells[-1].logits) and read.cells[0].passed


def test_calibration_text_is_sampled_from_model(model: Path) -> None:
    loaded = checkpoint.load(model)
    ids = calibration_text(loaded.model)
    assert ids.dtype == np.int32 and len(ids) >= MIN_CALIBRATION and ids.max() < small.VOCABULARY
    assert ids[0] == loaded.model.config.bos_token
    np.testing.assert_array_equal(ids, calibration_text(loaded.model))

"""`t2r verify`: passes, splits over providers, failures."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from cli_models import Output, run
from t2r_export.proof import tolerances
from t2r_runtime.cli.providers import split


def test_verify_passes(folder: Path, capsys: Output) -> None:
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 40]
    out, err = run(capsys, *arguments)
    assert out.startswith("40 steps, cpu  ")
    assert "first greedy mismatch" in out
    assert "FAILED" not in out
    assert err == ""
    result = json.loads(run(capsys, *arguments, "--provider", "cpu", "--json")[0])
    assert (result["passed"], result["steps"], result["same_checkpoint"]) == (True, 40, True)


def test_verify_with_fallback(folder: Path, capsys: Output, pretender: str) -> None:
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 3, "--provider"]
    _, err = run(capsys, *arguments, pretender, code=2)
    assert err.startswith("t2r: expected every node on nowhere; received ") and err.endswith("or allow fallback\n")
    # the provider has no measured tolerance, which is reported after its nodes fall back
    _, err = run(capsys, *arguments, f"{pretender}+cpu", code=2)
    assert err.startswith("t2r: expected a provider and quantization with a tolerance (")


def test_verify_reports_a_split(folder: Path, capsys: Output, pretender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tolerances.TOLERANCES, (pretender, "none"), tolerances.tolerance("cpu", "none"))
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 3, "--provider", f"{pretender}+cpu"]
    out, err = run(capsys, *arguments)
    nodes = len(onnx.load(folder / "t2r.onnx").graph.node)
    assert out.startswith("3 steps, nowhere ")
    assert err == f"nowhere runs 0 of {nodes} nodes, cpu {nodes}\n"
    assert json.loads(run(capsys, *arguments, "--json")[0])["placement"] == {"cpu": nodes}


def test_verify_fails_with_1(folder: Path, tmp_path: Path, capsys: Output) -> None:
    arguments = ["convert", folder / "model.pt", tmp_path / "other.pt", "--mixer", "linear:feature_size=5", "--seed", 9]
    run(capsys, *arguments)
    arguments = ["verify", tmp_path / "other.pt", folder / "t2r.onnx", "--steps", 5]
    out, err = run(capsys, *arguments, code=1)
    assert "FAILED" in out
    lines = err.splitlines()
    assert lines[0].endswith(f"t2r.onnx was exported from another file than {tmp_path / 'other.pt'}")
    assert lines[1].startswith("t2r: check failed: ")
    assert len(lines) == 2
    assert json.loads(run(capsys, *arguments, "--json", code=1)[0])["passed"] is False


def test_verify_refuses(folder: Path, capsys: Output) -> None:
    _, err = run(capsys, "verify", folder / "model.pt", folder / "t2r.onnx", code=2)
    assert err.startswith("t2r: expected a graph of this model: ")
    _, err = run(capsys, "verify", folder / "t2r.pt", folder / "t2r.onnx", "--provider", "abacus", code=2)
    assert "abacus" in err
    assert err.count("\n") == 1


def test_split() -> None:
    assert split("dnnl", {"cpu": 12, "dnnl": 5}) == "dnnl runs 5 of 17 nodes, cpu 12"

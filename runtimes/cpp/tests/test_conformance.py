"""The golden files of models/tiny through the C++ runtime; and faults in them, which it must see."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from cpp_build import GOLDEN, Run


def copy(folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, folder / "tiny"))


def test_golden_files(checked: Path, run: Run) -> None:
    lines = run(checked / "t2r_conformance", GOLDEN).stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} passed, 0 failed"
    assert {line.split()[1].rstrip(":") for line in lines[:-1]} >= {path.stem for path in GOLDEN.glob("*.json")}


def test_two_states_crossed(checked: Path, run: Run, tmp_path: Path) -> None:
    """A graph that gives one layer's sums to another."""
    folder = copy(tmp_path)
    model = onnx.load(folder / "tiny.onnx")
    names = {"present_S.0": "present_S.1", "present_S.1": "present_S.0"}
    for output in model.graph.output:
        output.name = names.get(output.name, output.name)
    for node in model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, folder / "tiny.onnx")
    failures = [
        line for line in run(checked / "t2r_conformance", folder, status=1).stdout.splitlines() if "FAILED" in line
    ]
    assert any("tiny:" in line for line in failures)


def test_no_folder(checked: Path, run: Run) -> None:
    assert run(checked / "t2r_conformance", "nowhere", status=2).stderr.startswith("expected a folder of golden files")

"""The conformance program passes on models/tiny, and detects faults of a runtime or a graph."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import t2r_runtime
from golden import faults
from golden.mutants import MUTANTS, PYTHON, changed, only
from t2r_runtime import conformance
from t2r_runtime.contract import sampling
from t2r_runtime.errors import UserError
from t2r_runtime.session import states

TINY = Path(__file__).parents[2] / "models" / "tiny"
Run = Callable[[], dict[str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture
def failures(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program on the copy; return the failed cases and the reasons."""

    def run() -> dict[str, str]:
        code = conformance.main(str(folder))
        *lines, last = capsys.readouterr().out.splitlines()
        failed = dict(line.removeprefix("FAILED ").split(": ", 1) for line in lines if line.startswith("FAILED "))
        assert all(line.startswith(("ok ", "FAILED ")) for line in lines)
        assert last == f"{len(lines) - len(failed)} passed, {len(failed)} failed"
        assert code == (1 if failed else 0)
        return failed

    return run


def test_the_python_runtime_passes(failures: Run) -> None:
    assert failures() == {}


def test_two_states_crossed(folder: Path, failures: Run) -> None:
    only(folder, "tiny", "window")
    model = onnx.load(folder / "tiny.onnx")
    swap = {"present_S.0": "present_S.1", "present_S.1": "present_S.0"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [swap.get(name, name) for name in names]
    onnx.save(model, folder / "tiny.onnx")
    failed = failures()
    assert failed.keys() == {"tiny"}
    assert "are off by" in failed["tiny"]


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_two_merges_exchanged(name: str, folder: Path, failures: Run) -> None:
    only(folder, f"text-{name}", f"stream-{name}")
    model = onnx.load(folder / f"{name}.onnx")
    metadata = {p.key: p.value for p in model.metadata_props}
    tokenizer = json.loads(json.loads(metadata["t2r.tokenizer"]))
    merges = tokenizer["model"]["merges"]
    first, second = merges.index(["e", "r"]), merges.index(["r", "e"])
    merges[first], merges[second] = merges[second], merges[first]
    metadata["t2r.tokenizer"] = json.dumps(json.dumps(tokenizer))
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, folder / f"{name}.onnx")
    failed = failures()
    assert failed.keys() == {f"text-{name}"}, "tokens are decoded as before"
    assert failed[f"text-{name}"].startswith("tokens of")


def test_rows_that_stay_in_their_order(folder: Path, failures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(folder, "batch-tiny", "batch-tiny-hybrid")
    right = conformance.Decoder.reorder
    monkeypatch.setattr(conformance.Decoder, "reorder", lambda self, rows: right(self, sorted(rows)))
    assert failures().keys() == {"batch-tiny", "batch-tiny-hybrid"}


def test_a_snapshot_of_another_byte(folder: Path, failures: Run) -> None:
    only(folder, "snapshot-tiny", "snapshot-packed")
    content = bytearray((folder / "tiny.state").read_bytes())
    content[10] ^= 1  # the time of its first member, which readers ignore
    (folder / "tiny.state").write_bytes(content)
    assert failures() == {"snapshot-tiny": "saved again it has other bytes"}


def test_a_search_whose_states_stay_behind(folder: Path, failures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(folder, "translator")
    monkeypatch.setattr(states.States, "reorder", lambda self, rows: None)
    assert "translations" in failures()["translator"]


def test_an_error_of_another_kind_or_none(folder: Path, failures: Run) -> None:
    only(folder, "bad")
    shutil.copy(folder / "bad" / "contract.onnx", folder / "bad" / "no-metadata.onnx")
    assert failures() == {"bad": "kind of error of bad/no-metadata.onnx: version instead of metadata"}
    shutil.copy(folder / "bad" / "good.onnx", folder / "bad" / "no-metadata.onnx")
    assert failures() == {"bad": "no error of bad/no-metadata.onnx"}


def test_a_sampler_off_by_one_draw(folder: Path, failures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(folder, "tiny", "sampling-tiny", "sampling-top3")
    right = sampling.gumbel
    monkeypatch.setattr(sampling, "gumbel", lambda seed, draw, tokens: right(seed, draw + 1, tokens))
    assert failures().keys() == {"sampling-tiny", "sampling-top3"}


FAULTS: dict[str, Callable[[Any], None]] = {
    "a logit": lambda t: nudge(t["logits"], 2e-4),
    "a state at the start": lambda t: nudge(t["start"]["S.0"], 0.1),
    "a position": lambda t: nudge(t["start"]["position"], 1),
    "a state at the end": lambda t: nudge(t["end"]["z.2"], 1e-2),
    "a token": lambda t: t["ids"]["data"].reverse(),
    "a greedy token": lambda t: t["greedy"]["tokens"].reverse(),
}


def nudge(entry: dict[str, Any], change: float) -> None:
    entry["data"][0] += change


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_trace_is_seen(name: str, fault: str, folder: Path, failures: Run) -> None:
    only(folder, name)
    trace = json.loads((folder / f"{name}.json").read_text())
    FAULTS[fault](trace)
    (folder / f"{name}.json").write_text(json.dumps(trace))
    assert failures().keys() == {name}


def test_numbers_that_are_none(folder: Path, failures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(folder, "tiny")
    right = conformance.Decoder.prefill
    monkeypatch.setattr(conformance.Decoder, "prefill", lambda self, ids: right(self, ids) * np.nan)
    assert failures().keys() == {"tiny"}


@pytest.mark.parametrize("fault", ["another kind", "no file", "no key"])
def test_a_case_that_cannot_be_tried_has_failed(fault: str, folder: Path, failures: Run) -> None:
    only(folder, "tiny", "window")
    index = json.loads((folder / "index.json").read_text())
    if fault == "another kind":
        index["cases"][1]["kind"] = "dream"
    elif fault == "no file":
        (folder / "window.json").unlink()
    else:
        (folder / "window.json").write_text('{"graph": "window.onnx"}')
    (folder / "index.json").write_text(json.dumps(index))
    assert failures().keys() == {"window"}


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_what_a_wrong_runtime_does_is_seen(fault: str, folder: Path, failures: Run) -> None:
    case = faults.put(fault, folder)
    assert failures().keys() == {case}


@pytest.mark.parametrize("name", PYTHON)
def test_a_wrong_runtime_fails(name: str, tmp_path: Path) -> None:
    """Change one line in a copy of the package: the case fails, and the program runs to its end."""
    case, (file, old, new) = MUTANTS[name]["case"], MUTANTS[name]["python"]
    shutil.copytree(Path(t2r_runtime.__file__).parent, tmp_path / "t2r_runtime")
    source = tmp_path / "t2r_runtime" / file
    source.write_text(changed(source.read_text("utf-8"), old, new), "utf-8")
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    only(folder, case)
    command = [sys.executable, "-m", "t2r_runtime.conformance", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(f"FAILED {case}: ")


def test_no_golden_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="golden files in"):
        conformance.main(str(tmp_path))


def test_options_of_the_graph_that_nobody_follows(folder: Path, failures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only(folder, "sampling-options", "sampling-tiny", "translator-options", "translator")
    for asked in (conformance.Sampling, conformance.Beam):
        right = asked.resolved
        monkeypatch.setattr(asked, "resolved", lambda self, generation=None, right=right: right(self))
    assert failures().keys() == {"sampling-options", "translator-options"}

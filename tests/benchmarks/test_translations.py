"""The table of translators."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import small
import texts
import translations
from t2r_export.data.pairs import read_pairs, write_pairs
from t2r_export.quality.evaluate_pairs import evaluate_pairs
from t2r_runtime.contract.state_spec import StateSpec

SUM = StateSpec("S.0", "float32", ("B", 7, 5, 9))
CACHE = StateSpec("k.0", "float32", ("B", 2, "T", 5))
OF_SOURCE = StateSpec("source_k.0", "float32", ("B", 2, "M", 5), constant=True)
PAIRS = [("ab", "ba"), ("abc", "cba"), ("h", "h"), ("a b", "b a")]
PLAN = {"finetune": [{"stages": [{"steps": 5}]}, {"stages": [{"steps": 30}, {"steps": 1700}]}]}


@pytest.mark.parametrize(
    "states, text",
    [
        ([SUM], "1.3"),
        ([SUM, CACHE], "grows with target"),
        ([SUM, OF_SOURCE], "grows with source"),
        ([CACHE, OF_SOURCE], "grows with target and source"),
    ],
)
def test_kilobytes_of_states(states: list[StateSpec], text: str) -> None:
    assert translations.kilobytes(states) == text


def test_lines_of_build(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    texts.write_translator(tmp_path / "teacher.pt", small.SOFTMAX, "softmax", PLAN)
    texts.write_translator(tmp_path / "one.pt", small.LINEAR_CROSS, "sinusoidal", PLAN)
    write_pairs(tmp_path / "test.tsv", PAIRS)
    (tmp_path / "results.json").write_text(json.dumps([{"name": "one", "path": "one.pt", "seconds": 61.6}]))
    saved = tmp_path / "kept.json"
    monkeypatch.setattr(sys, "argv", ["translations.py", str(tmp_path), "--save", str(saved)])
    translations.main()
    teacher, student = json.loads(saved.read_text())["rows"]
    nats = evaluate_pairs(tmp_path / "one.pt", read_pairs(tmp_path / "test.tsv")).text
    assert nats is not None and student[:2] == ["one", f"{nats.nats:.3f}"]
    assert teacher[0] == "softmax teacher" and teacher[4:] == [
        "grows with target and source",
        "grows with source",
        "1,730",
        "-",
    ]
    assert student[-2:] == ["1,730", "62"] and float(student[4]) > float(student[5]) > 0
    printed = capsys.readouterr().out
    assert "beam 1: 4 sentences, nrefs:1" in printed and "beam 4: 4 sentences, nrefs:1" in printed

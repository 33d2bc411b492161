"""Programs of all languages: outputs are compared before speed, and failures get a row."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from comparison import asked as programs
from comparison.embedded import QUICK, Often, encoding, side_by_side
from comparison.programs import PYTHON, ROOT
from comparison.tables import EMBEDDING, tables
from t2r_runtime.errors import UserError

GRAPH = str(ROOT / "models" / "tiny" / "tiny.onnx")
ABOUT = {"setting": "tiny, 1 thread"}
TWO = Often(rounds=2, turns=3, checked=4)

# answers each word from a table, or fails
FAKE = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    word, count = line.split()
    answer = {answers!r}[word]
    print(*(answer[:int(count)] if answer else sys.exit("it broke\\nbecause of that")), flush=True)
"""


def fake(check: Sequence[int], time: Sequence[float]) -> list[str]:
    return [sys.executable, "-c", FAKE.format(answers={"check": list(check), "time": list(time)})]


def measured(**commands: Any) -> dict[str, dict[str, Any]]:
    programs_ = {name: (lambda command=command: command) for name, command in commands.items()}
    notes: list[str] = []
    rows = {row["name"]: row for row in side_by_side(ABOUT, programs_, "right", TWO, notes.append)}
    assert len(notes) == sum("error" in row for row in rows.values())
    return rows


def test_medians_and_ratios_to_first() -> None:
    rows = measured(first=fake([1, 2, 3, 4], [2, 2, 2]), right=fake([1, 2, 3, 4], [4, 6, 8]))
    assert rows["first"] == {"name": "first", **ABOUT, "median": 2, "low": 2, "high": 2, "count": 6, "ratio": 1}
    assert (rows["right"]["median"], rows["right"]["ratio"]) == (6, 3)


def test_wrong_output_has_no_speed() -> None:
    rows = measured(other=fake([1, 2, 9, 4], [1, 1, 1]), right=fake([1, 2, 3, 4], [4, 6, 8]))
    assert rows["other"]["error"] == "another at 2"
    assert "median" not in rows["other"]
    assert rows["right"]["ratio"] == 1


def test_missing_reference_gives_no_speed() -> None:
    rows = measured(right=["/nowhere/program"], other=fake([1, 2, 3, 4], [1, 1, 1]))
    assert rows["right"]["error"] == "No such file or directory"
    assert rows["other"]["error"].startswith("another at")


def test_failed_program_has_last_line_in_row() -> None:
    rows = measured(broken=fake([1, 2, 3, 4], []), right=fake([1, 2, 3, 4], [4, 6, 8]))
    assert rows["broken"]["error"] == "because of that"
    assert rows["right"]["median"] == 6


def test_silent_program_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PATIENCE", 0.2)
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(UserError, match="an answer of silent"), programs.asked("silent", silent):
        pass


def test_programs_in_python(tmp_path: Path) -> None:
    again = [*PYTHON, "t2r", GRAPH, "1", "3"]
    rows = side_by_side(ABOUT, {"right": lambda: again, "again": lambda: again}, "right", QUICK, print)
    assert all(row["median"] > 0 for row in rows)
    text = tmp_path / "text"
    text.write_text("Once upon a time\nthere was été\n")
    command = [*PYTHON, "tokenizers", str(ROOT / "models" / "tiny" / "bytes.onnx"), str(text)]
    found = encoding(text, side_by_side(ABOUT, {"right": lambda: command}, "right", QUICK, print))
    assert found[0]["median"] > 0 and found[0]["low"] <= found[0]["median"] <= found[0]["high"]


def test_encoding_rate(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(2_000_000))
    row = {"name": "x", **ABOUT, "median": 100.0, "low": 50.0, "high": 200.0, "count": 3, "ratio": 2.0}
    (found,) = encoding(text, [row])
    assert found == {**row, "median": 20, "low": 10, "high": 40, "ratio": 0.5}
    assert encoding(text, [{"name": "x", "error": "gone"}]) == [{"name": "x", "error": "gone"}]


def test_tables() -> None:
    row = {"name": "x", **ABOUT, "median": 1.0, "low": 0.5, "high": 2.0, "count": 3, "ratio": 1.0}
    size = {"name": "libt2r.so", "bytes": 458048, "gzipped": 200000}
    made = tables({"format": EMBEDDING, "steps": [row], "encode": [row], "sizes": [size]})
    assert made["steps"].rows == [["x", "1.00 (0.50-2.00)"]]
    assert made["steps"].head == ["", "tiny, 1 thread"]
    assert made["sizes"].rows == [["libt2r.so", "458,048", "200,000"]]

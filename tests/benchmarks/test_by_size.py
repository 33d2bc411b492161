"""The fitted line of student loss over model size."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import by_size
import small
from by_size import Build, fit, read, saved, table
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError

SIZES = (3e5, 1e6, 4e6, 2e7)


def builds(*factors: float) -> list[Build]:
    """Builds whose gaps are 2 · parameters^-0.25 times each factor."""
    gaps = [2 * size**-0.25 * factor for size, factor in zip(SIZES, factors, strict=False)]
    return [Build(int(size), 1.5, 1.5 + gap, 10, 20) for size, gap in zip(SIZES, gaps, strict=False)]


def test_an_exact_line_is_found() -> None:
    line = fit(builds(1, 1, 1, 1))
    assert math.isclose(line.b, -0.25, rel_tol=1e-6) and line.error < 1e-6
    assert all(math.isclose(value, 2 * 1e9**-0.25, rel_tol=1e-5) for value in line.predict(1e9))


def test_intervals_hold_the_builds_and_widen() -> None:
    """Compared with the textbook prediction interval, with values computed by hand."""
    line = fit(builds(1.1, 0.9, 1.05, 0.97))
    x = [math.log(size) for size in SIZES]
    y = [math.log(build.gap) for build in builds(1.1, 0.9, 1.05, 0.97)]
    mean = sum(x) / 4
    square = sum((value - mean) ** 2 for value in x)
    slope = sum((value - mean) * other for value, other in zip(x, y, strict=True)) / square
    rest = [other - sum(y) / 4 - slope * (value - mean) for value, other in zip(x, y, strict=True)]
    spread = math.sqrt(sum(value**2 for value in rest) / 2)
    assert math.isclose(line.b, slope, rel_tol=1e-6) and math.isclose(line.spread, spread, rel_tol=1e-6)
    assert math.isclose(line.error, spread / math.sqrt(square), rel_tol=1e-6)
    middle, low, high = line.predict(1.5e9)
    wide = 4.303 * spread * math.sqrt(1 + 1 / 4 + (math.log(1.5e9) - mean) ** 2 / square)
    assert math.isclose(high / middle, math.exp(wide), rel_tol=1e-6) and math.isclose(middle / low, high / middle)
    near = line.predict(2e6)
    assert near[2] / near[1] < high / low


def test_predictions_from_four_builds_on() -> None:
    made = table(builds(1, 1, 1, 1), fit(builds(1, 1, 1, 1)))
    assert [row[0] for row in made.rows[4:-1]] == ["135,000,000", "1,500,000,000"]
    expected = 2 * 135e6**-0.25
    assert made.rows[4][2] == f"fitted: {expected:+.3f} ({expected:+.3f} to {expected:+.3f})"


def test_builds_of_a_saved_table_stay(tmp_path: Path) -> None:
    path, found = tmp_path / "saved.json", builds(1, 1, 1, 1)
    made = table(found, fit(found))
    path.write_text(json.dumps({"head": made.head, "rows": made.rows}))
    again = saved(path)
    assert table(again, fit(again)).rows[:4] == made.rows[:4] and len(again) == 4
    for text in ('{"head": ["parameters"], "rows": []}', "[]", '{"head": 3}', "nothing"):
        path.write_text(text)
        with pytest.raises(UserError, match="expected a table saved by by_size.py; received .*; name another file"):
            saved(path)
    with pytest.raises(UserError, match="name another file"):
        saved(tmp_path / "none.json")


def test_two_builds_are_no_line() -> None:
    with pytest.raises(UserError, match="expected 3 to 10 builds; received 2"):
        fit(builds(1, 1))


def test_rows_of_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number, gap in enumerate((0.3, 0.1, 0.2)):
        work = tmp_path / str(number)
        work.mkdir()
        teacher, student = small.MODELS["softmax"].build(), small.MODELS["softmax"].build()
        checkpoint.save(work / "teacher.pt", initialize(teacher, number), None, {})
        model = initialize(student.with_mixers(*[LinearConfig(5 + number)] * len(student.layers)), 0)
        checkpoint.save(work / "m.pt", model, None, {})
        row = {"name": "m", "path": "m.pt", "teacher_nats": 2.0, "student_nats": 2.0 + gap, "tokens": 7}
        (work / "results.json").write_text(json.dumps([row]))
    found = read(tmp_path / "1", "m")
    assert found.parameters == sum(weight.numel() for weight in initialize(teacher, 0).parameters())
    assert found.state == sum(spec.bytes() for spec in checkpoint.load(tmp_path / "1" / "m.pt").model.state_spec())
    made = table([found, *builds(1, 1)], fit([found, *builds(1, 1)]))
    assert made.rows[0][2] == "+0.100" and made.rows[-1][2].startswith("b = ") and len(made.rows) == 4
    with pytest.raises(UserError, match="expected a student of m in .*; received n; choose one of those by --student"):
        read(tmp_path / "1", "n")
    row["student_nats"] = 1.0
    (work / "results.json").write_text(json.dumps([row]))
    monkeypatch.setattr(sys, "argv", ["by_size.py", str(work), "--student", "m"])
    with pytest.raises(UserError, match="expected a student above its teacher"):
        by_size.main()
    assert capsys.readouterr().out == ""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from t2r_export.training.curves import draw, read_curves, write_csv
from t2r_runtime.errors import UserError

PLAN = [{"stage": "transfer", "steps": 20, "learning_rate": 0.1}, {"stage": "task", "steps": 30, "learning_rate": 0.1}]


def start(stage: int = 0, step: int = 0) -> dict[str, Any]:
    return {"event": "start", "stage": stage, "step": step, "stages": PLAN, "batch": 2, "length": 8}


TOKENS = {"transfer": 0, "task": 321}  # tokens before the stage; 17 per step, as in pair batches


def place(stage: str, number: int) -> dict[str, Any]:
    return {"stage": stage, "step": number, "tokens": TOKENS[stage] + 17 * number}


def step(stage: str, number: int, loss: float) -> dict[str, Any]:
    return {**place(stage, number), "loss": loss, "learning_rate": 0.1, "tokens_per_second": 5.0}


def validation(stage: str, number: int, nats: float | None) -> dict[str, Any]:
    return {**place(stage, number), "validation_loss": 0.5, "validation_nats": nats}


RUN = [
    start(),
    step("transfer", 10, 4.0),
    validation("transfer", 20, 2.5),
    step("transfer", 20, 3.0),
    step("task", 10, 2.0),
    validation("task", 30, 2.25),
    step("task", 30, 1.0),
    {"event": "done", "nats": 2.2, "before": {"teacher": 1.6, "teacher_valid": 1.5, "student": 3.0}},
]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_read_curve_values_and_tokens(tmp_path: Path) -> None:
    (curve,) = read_curves([write(tmp_path / "one.pt.jsonl", RUN)])
    assert (curve.name, curve.teacher) == ("one", 1.5)
    assert [(p.stage, p.step, p.tokens, p.loss, p.validation_nats) for p in curve.points] == [
        ("transfer", 10, 170, 4.0, None),
        ("transfer", 20, 340, 3.0, 2.5),
        ("task", 10, 491, 2.0, None),
        ("task", 30, 831, 1.0, 2.25),
    ]
    assert [len(stage) for stage in curve.stages()] == [2, 2]


def test_resumed_steps_replace_earlier_ones(tmp_path: Path) -> None:
    lines = [
        start(),
        step("transfer", 10, 4.0),
        step("transfer", 20, 3.0),
        step("task", 10, 9.0),
        step("task", 20, 9.0),
    ]
    lines += [start(1, 10), step("task", 20, 2.0)]
    (curve,) = read_curves([write(tmp_path / "log", lines)])
    assert [(p.tokens, p.loss) for p in curve.points] == [(170, 4.0), (340, 3.0), (491, 9.0), (661, 2.0)]
    again = [*lines, start(), step("transfer", 10, 7.0)]
    (curve,) = read_curves([write(tmp_path / "log", again)])
    assert [(p.tokens, p.loss) for p in curve.points] == [(170, 7.0)]


def test_equal_file_names_use_paths(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "a.jsonl" for folder in ("x", "y")]
    for path in paths:
        path.parent.mkdir()
        write(path, RUN)
    assert [curve.name for curve in read_curves(paths)] == [str(path) for path in paths]


def test_csv_has_all_points(tmp_path: Path) -> None:
    logs = [write(tmp_path / f"{name}.jsonl", RUN) for name in ("a", "b")]
    write_csv(read_curves(logs), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["a"] * 4 + ["b"] * 4
    assert rows[1]["loss"] == "3.0"
    assert rows[1]["validation_nats"] == "2.5"
    assert rows[2]["validation_nats"] == ""


def test_plots_show_all_runs_and_are_reproducible(tmp_path: Path) -> None:
    curves = read_curves([write(tmp_path / f"{name}.jsonl", RUN) for name in ("first", "second")])
    for name in ("a.svg", "b.svg", "a.png"):
        draw(curves, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text.count("prefers-color-scheme: dark") == 1
    assert text == (tmp_path / "b.svg").read_text()
    for word in ("first", "second", "teacher", "transfer", "tokens trained on", "nats/token"):
        assert f">{word}" in text or word in text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw(curves[:1], tmp_path / "b.svg")
    assert "second" not in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "no line with the event start"),
        ("no json\n", "a training log in"),
        ("[1]\n", "a training log in"),
        ('{"event": "start"}\n', "KeyError: 'stages'"),
        (json.dumps(start()) + '\n{"stage": "dream", "step": 1}\n', "a training log in"),
        (json.dumps(start()) + '\n{"stage": "task", "step": 1, "loss": 2.0}\n', "KeyError: 'tokens'"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(content)
    with pytest.raises(UserError, match="name a .jsonl file that t2r finetune wrote") as caught:
        read_curves([tmp_path / "log"])
    assert message in str(caught.value)


def test_draw_refuses_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="at least one log; received none"):
        read_curves([])
    with pytest.raises(UserError, match="to be able to read .*/absent"):
        read_curves([tmp_path / "absent"])
    curves = read_curves([write(tmp_path / "log", RUN)])
    with pytest.raises(UserError, match="a file that ends in .svg or .png; received .*x.pdf"):
        draw(curves, tmp_path / "x.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="expected matplotlib, .*; pip install matplotlib"):
        draw(curves, tmp_path / "x.svg")
    write_csv(curves, tmp_path / "x.csv")  # this needs no matplotlib
    assert not (tmp_path / "x.svg").exists()

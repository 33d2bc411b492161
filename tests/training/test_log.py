from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from t2r_export.training.log import Stopwatch, TrainingLog
from t2r_runtime.errors import UserError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_log_file_is_appended_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for first in (0, 10):
        with TrainingLog(path) as log:
            log.start_stage("task", first, 20, 64 * first)
            log.validation(first + 10, 1.25, math.nan, math.nan, 64 * first + 640)
            log.progress(first + 10, 1.5, 1e-3, 64 * first + 640, 3e9, 1 << 20)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 10, 20, 20]
    assert [line["tokens"] for line in lines] == [640, 640, 1280, 1280]
    place = {"stage": "task", "step": 10, "tokens": 640}
    assert lines[0] == {**place, "validation_loss": 1.25, "validation_nats": None, "validation_error": None}
    assert lines[1].items() >= {**place, "loss": 1.5, "learning_rate": 1e-3}.items()
    assert lines[1]["tokens_per_second"] > 0
    assert lines[1]["teraflops"] == pytest.approx(lines[1]["tokens_per_second"] * 3e-3, rel=1e-3)
    assert lines[1]["memory"] == 1 << 20
    assert lines[3]["tokens_per_second"] > 0


def test_layer_statistics_are_logged_if_any(tmp_path: Path) -> None:
    with TrainingLog(tmp_path / "log") as log:
        log.start_stage("task", 0, 20, 0)
        log.validation(10, 1.25, 2.0, 0.5, 320, [{}, {"dead_keys": 0.5, "smallest_normalizer": math.inf}])
        log.validation(20, 1.25, 2.0, 0.5, 640, [{}, {}])
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert first["layers"] == [{}, {"dead_keys": 0.5, "smallest_normalizer": None}]
    assert "layers" not in second


def test_plain_lines_without_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingLog(None, seconds=1000) as log:
        log.start_stage("distill", 0, 40, 0)
        log.validation(10, 0.5, 1.75, 0.125, 100)
        for done in (10, 20, 30, 40):
            log.progress(done, 0.25, 1e-3, 10 * done)
    lines = capsys.readouterr().err.splitlines()
    assert "validation" not in lines[1]  # it was that of step 10
    assert len(lines) == 2  # the first and the last of the stage
    assert lines[0].startswith("distill 10/40: loss 0.2500, validation 0.5000 (1.750 ± 0.125 nats/token), ")
    assert lines[1].startswith("distill 40/40")
    assert lines[1].endswith(" 0 s left of the run")
    assert "tokens/s" in lines[0]


def test_progress_bar_on_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with TrainingLog(None) as log:
        log.start_stage("distill", 4, 20, 40)
        log.progress(10, 0.25, 1e-3, 100)
        log.message("a remark")
        log.start_stage("task", 0, 5, 100)
    shown = capsys.readouterr().err
    assert "10/20" in shown
    assert "loss 0.2500" in shown
    assert "a remark" in shown
    assert "task" in shown


def test_disabled_log_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingLog(tmp_path / "log", enabled=False) as log:
        log.start_stage("task", 0, 1, 0)
        log.progress(1, 1.0, 1.0, 1)
        log.message("nothing")
        log.record(event="nothing")
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "log").exists()


def test_time_left_of_stage() -> None:
    clock = Clock()
    watch = Stopwatch("task", done=10, steps=50, tokens=300, clock=clock)  # resumed at step 10
    clock.now += 20
    assert watch.lap(900) == 30
    assert watch.left(20) == 60  # ten steps took 20 s, 30 steps are left
    with watch.paused():
        clock.now += 1000
    clock.now += 10
    assert watch.lap(1500) == 60
    assert watch.left(25) == 50


def test_unwritable_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write the log .*; choose another place for it"):
        TrainingLog(tmp_path / "absent" / "log")


def test_time_left_includes_later_stages() -> None:
    """Includes later stages, remaining validations, and the final evaluation."""
    clock = Clock()
    watch = Stopwatch("transfer", done=0, steps=20, tokens=0, clock=clock, behind=60, every=30)
    with watch.paused():
        clock.now += 7  # a validation
    clock.now += 10
    assert watch.left(10) == 70 + 3 * 7  # ten steps took 10 s, 70 steps are left


def test_progress_counts_whole_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with TrainingLog(None) as log:
        log.end_seconds = 5000.0
        log.start_stage("distill", 0, 40, 0, (10, 0))
        log.progress(40, 0.25, 1e-3, 10)
    assert capsys.readouterr().err.endswith(" 5000 s left of the run\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with TrainingLog(None) as log:
        log.start_stage("distill", 4, 20, 40, (30, 50))
        log.progress(10, 0.25, 1e-3, 100)
    assert "40/100" in capsys.readouterr().err

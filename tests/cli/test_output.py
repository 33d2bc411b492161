"""What commands print, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

from t2r_export.cli.output import size, table
from t2r_runtime.cli.output import plain, show
from t2r_runtime.cli.progress import progress


@dataclasses.dataclass
class Measured:
    name: str
    values: tuple[float, ...]
    file: Path


def test_json_values(capsys: pytest.CaptureFixture[str]) -> None:
    show(True, {"a": Measured("ü", (0.5, math.nan, -math.inf), Path("x/y")), 3: [None, True]}, "text")
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": {"name": "ü", "values": [0.5, None, None], "file": "x/y"}, "3": [None, True]}
    assert out.count("\n") == 1
    assert "NaN" not in out


def test_generated_text_equals_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    show(False, {}, "two\nlines")
    assert capsys.readouterr().out == "two\nlines\n"


def test_plain_leaves_classes_alone() -> None:
    assert plain([1, "a", False]) == [1, "a", False]


def test_table() -> None:
    assert table([["a", 1], ["long", 20]], ["name", "n"]) == "name   n\na      1\nlong  20"
    assert table([["a", "b"], ["ccc", ""]]) == "a    b\nccc"


@pytest.mark.parametrize(
    "count, text", [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (75.5e6, "75.5 MB"), (2**31, "2.15 GB")]
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def test_progress_in_a_log_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("verify", 10, seconds=0.0) as advance:
        advance(4)
        advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("verify: 4 of 10, ")
    assert lines[1] == "verify: 10 of 10, 0 s left"


def test_short_work_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("verify", 10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_progress_on_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("verify", 10, seconds=0.0) as advance:
        for done in (5, 10):
            advance(done)
    parts = capsys.readouterr().err.split("\r\x1b[K")
    assert [part.partition(",")[0] for part in parts] == ["", "verify: 5 of 10", "verify: 10 of 10", ""]

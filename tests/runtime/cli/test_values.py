"""Values of options, and verbs, of `t2r-run`."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from t2r_runtime import __main__ as entry
from t2r_runtime.cli import VERBS, main, providers
from t2r_runtime.cli.numbers import Integer, Range, Real, RealRange
from t2r_runtime.errors import UserError


def test_providers() -> None:
    """Options of a provider, whose values may have commas."""
    assert providers.read("cpu") == providers.CPU
    given = {"soc_model": "57", "list": "1,2", "empty": ""}
    assert providers.read("qnn+cpu:soc_model=57,list=1,2,empty=") == ("qnn", given, True)
    for text, message in (
        ("gpu", "expected"),
        ("qnn:fast", "expected a provider as NAME:KEY=VALUE,KEY=VALUE; received 'qnn:fast'"),
        ("qnn+gpu", "expected \\+cpu or nothing after a provider's name; received '\\+gpu'"),
    ):
        with pytest.raises(UserError, match=message):
            providers.read(text)


def test_split(capsys: pytest.CaptureFixture[str]) -> None:
    providers.note_split("qnn", {"qnn": 5})
    assert capsys.readouterr().err == ""
    providers.note_split("qnn", {"cpu": 2, "qnn": 5})
    assert "qnn runs 5 of 7 nodes, cpu 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind, value, expected",
    [
        (Integer(), "1.5", "an integer; received"),
        (Integer(), str(1 << 40), "an integer of at most 2147483647 in magnitude; received"),
        (Range(min=2), "1", "an integer from 2 to 2147483647; received"),
        (Range(max=5), "x", "an integer from -2147483647 to 5; received"),
        (Real(), "nan", "a finite number; received"),
        (RealRange(min=0, min_open=True), "0", "a finite number above 0"),
        (RealRange(min=0), "-inf", "a finite number of at least 0"),
    ],
)
def test_numbers_out_of_bounds(kind: click.ParamType, value: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        kind.convert(value, click.Option(["--size"]), None)


def test_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(verb in listed for verb in VERBS)
    assert main(["genrate", str(tmp_path)]) == 2
    assert "expected a verb of t2r-run; received 'genrate'; did you mean generate?" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert "graph contract" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["click", "numpy"])
def test_a_package_that_is_missing(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only click is named as what to install: another one is a broken installation."""

    def fails(*_: str) -> int:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(entry, "begin", fails)
    if missing == "click":
        assert entry.main() == 2
        assert capsys.readouterr().err == "t2r-run: expected click; received none; pip install click jinja2\n"
    else:
        with pytest.raises(ModuleNotFoundError):
            entry.main()


def test_arguments_with_a_zero_byte(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a\0b"]) == 2
    assert "expected arguments without a zero byte" in capsys.readouterr().err

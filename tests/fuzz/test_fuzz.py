"""No untrusted input is reported as a bug, ends the process, hangs, or exhausts memory."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest

from fuzz import base, kinds, runner, suite, translators

CASES = 500  # of all kinds; python -m tests.fuzz runs more
PARTS = 16  # parts of a run, for parallel processes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base.make(tmp_path_factory.mktemp("whole"))


def test_every_kind_has_cases_by_its_weight() -> None:
    made = suite.cases(list(kinds.KINDS), CASES, seed=3)
    counts = Counter(case.kind for case in made)
    assert counts.keys() == kinds.KINDS.keys() >= suite.WEIGHTS.keys()
    assert abs(len(made) - CASES) < len(kinds.KINDS) and len(set(made)) == len(made)
    assert counts["training_state"] < counts["tokenizer"] < counts["runtime_api"]


@pytest.mark.parametrize("part", range(PARTS))
def test_damage_is_refused_or_harmless(part: int, whole: Path) -> None:
    ended = [suite.attempt_one(whole, case) for case in suite.cases(list(kinds.KINDS), CASES, seed=0)[part::PARTS]]
    assert [(case, ending) for case, ending, _ in ended if ending.kind in runner.BAD] == []


@pytest.mark.parametrize("line", [*base.LINES, *translators.LINES], ids=lambda line: " ".join(line[:2]))
def test_what_is_whole_is_accepted(line: list[str], whole: Path) -> None:
    """The intact inputs are accepted, so a refusal is due to the damage."""

    def case(here: Path) -> str:
        kinds.graph_folder(whole, here)
        for file in (
            *whole.glob("translator.*"),
            *(whole / name for name in ("text.txt", "source.pt", "student.adapter", "pairs.tsv")),
        ):
            shutil.copy(file, here)
        return runner.command(*line)

    assert runner.attempt(case) == runner.Ending("accepted", ANY)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gguf/0.gguf", "awq", "gptq"])
def test_whole_folders_are_accepted(family: str, whole: Path) -> None:
    def case(here: Path) -> str:
        converted = runner.command("convert", whole / family, "swapped.pt", "--mixer", "linear:feature_size=3")
        return kinds.exported("swapped.pt") if converted == "accepted" else converted

    assert runner.attempt(case) == runner.Ending("accepted", ANY)


def hang(here: Path) -> str:
    time.sleep(60)
    return "accepted"


def spin(here: Path) -> str:
    while True:
        pass


def work(here: Path) -> str:
    """Little CPU time in much wall time, as on a busy machine."""
    while time.process_time() < 0.5:
        time.sleep(0.05)
        sum(range(1_000_000))
    return "accepted"


def ask(here: Path) -> str:
    """Sleeps while a child process works."""
    if (child := os.fork()) == 0:
        work(here)
        os._exit(0)
    os.waitpid(child, 0)
    return "accepted"


def die(here: Path) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "accepted"


def fill(here: Path) -> str:
    return "accepted" if b"\x01" * (runner.MEMORY + (1 << 26)) else ""


def escape(here: Path) -> str:
    raise TypeError("lost")


def lie(here: Path) -> str:
    raise runner.SilentlyWrong("one token too many")


def starve(here: Path) -> str:
    os.kill(os.getpid(), signal.SIGKILL)  # like the system's out-of-memory killer
    return "accepted"


@pytest.mark.parametrize(
    "case, kind",
    [
        (hang, "hang"),
        (spin, "hang"),
        (die, "signal"),
        (fill, "memory"),
        (escape, "escaped"),
        (lambda here: "exit 3", "exit 3"),
        (lie, "silently wrong"),
        (starve, "memory"),
    ],
)
def test_a_bad_ending_is_seen(case: object, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECONDS", 1)
    monkeypatch.setattr(runner, "PATIENCE", 2)
    monkeypatch.setattr(runner, "MEMORY", 256 << 20)
    ending = runner.attempt(case)  # type: ignore[arg-type]
    assert ending.kind == kind
    assert kind in runner.BAD
    assert "TypeError: lost" in ending.said or kind != "escaped"


@pytest.mark.parametrize("case", [work, ask])
def test_who_works_slowly_is_waited_for(case: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 1)
    monkeypatch.setattr(runner, "STIRS", 0.01)
    assert runner.attempt(case) == runner.Ending("accepted", "")

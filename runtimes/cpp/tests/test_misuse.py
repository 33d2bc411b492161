"""Misuse by programs in C and C++: one line with its kind, and the exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_build import GOLDEN, Run
from misuses import check, sayable


@pytest.mark.parametrize("language, name", [(lang, name) for lang in ("c", "cpp") for name in sayable(lang)])
def test_bad_use(checked: Path, run: Run, language: str, name: str) -> None:
    done = run(checked / f"misuse_{language}", GOLDEN, name, status=2)
    check(name, done.stdout, done.stderr)


def test_a_callback_that_throws(checked: Path, run: Run) -> None:
    """Its exception is rethrown, but not through C, and the decoder can continue."""
    assert run(checked / "misuse_cpp", GOLDEN, "callback").stdout == "mine\n"


@pytest.mark.parametrize("name, line", [("token", "token: another\n"), ("no-file", "")])
def test_another_line_is_seen(name: str, line: str) -> None:
    with pytest.raises(AssertionError):
        check(name, "", line)

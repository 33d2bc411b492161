"""The command line is frozen in a file, and every option has a help text."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import click
import pytest

from cli.command_line import commands, described, options, verbs
from t2r_export.cli import VERBS

FROZEN = Path(__file__).with_name("command_line.txt")


def test_command_line_frozen() -> None:
    """If it should have changed: python tests/cli/command_line.py > tests/cli/command_line.txt"""
    before, now = FROZEN.read_text(encoding="utf-8"), described()
    difference = difflib.unified_diff(before.splitlines(), now.splitlines(), "frozen", "now", lineterm="", n=1)
    assert before == now, "\n".join(["see the docstring of this test", *difference])


def test_verbs_and_options_stay_few() -> None:
    """`t2r-export` is the verb export; `--version` is an option of the program."""
    assert len(VERBS) <= 21
    assert sum(len(options(command)) for command in commands().values()) + 1 <= 193


def test_the_page_lists_every_verb_and_option() -> None:
    """If it does not: python tests/cli/command_line.py verbs"""
    page = FROZEN.parents[2] / "docs" / "commands.md"
    assert verbs() in page.read_text(encoding="utf-8")


def test_every_verb_is_frozen() -> None:
    lines = FROZEN.read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("t2r ")] == list(VERBS)


@pytest.mark.parametrize("change", ["type", "default", "name"])
def test_a_changed_option_differs(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    option = next(p for p in commands()["chat"].params if p.name == "max_tokens")
    value = {"type": click.STRING, "default": 7, "opts": ["--tokens"]}
    attribute = "opts" if change == "name" else change
    monkeypatch.setattr(option, attribute, value[attribute])
    assert described() != FROZEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_help(verb: str) -> None:
    command = commands()[verb]
    assert len((command.help or "").split()) >= 3
    for option in command.params:
        if isinstance(option, click.Option):
            said = re.sub(r"\s*\[.*\]$|Default: .*$", "", option.help or "")  # without the default
            assert len(said.split()) >= 3, f"--{option.name}: {option.help!r}"
            assert said.strip().endswith(".") and said[0].isupper() or ": " in said, f"--{option.name}: {option.help!r}"


def test_help_terms() -> None:
    """Help texts use no private terms."""
    banned = "graph for prompts|graph that writes|first other|tokens a second|ms a step|whole number"
    for verb, command in commands().items():
        texts = [command.help, *(p.help for p in command.params if isinstance(p, click.Option))]
        found = [text for text in texts if text and re.search(rf"\b({banned})\b", text)]
        assert found == [], verb

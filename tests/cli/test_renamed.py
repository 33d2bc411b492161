"""Former verbs and options end with one line that names the new one, which exists."""

from __future__ import annotations

import re

import click
import pytest

from cli.command_line import commands
from cli_models import Output, run
from t2r_export.cli import renamed


@pytest.mark.parametrize("verb", renamed.VERBS)
def test_former_verb_names_new_one(verb: str, capsys: Output) -> None:
    new = renamed.VERBS[verb]
    assert run(capsys, verb, "a", "b", code=2)[1] == f"t2r: {verb} is `{new}` now; see `t2r --help`\n"
    assert not new.startswith("t2r ") or new.split()[1] in commands()


@pytest.mark.parametrize("verb", renamed.OPTIONS)
def test_former_option_names_new_one(verb: str, capsys: Output) -> None:
    for old, new in renamed.OPTIONS[verb].items():
        for form in (old, f"{old} 3", f"{old}=3"):
            _, err = run(capsys, verb, "a", "b", *form.split(), code=2)
            assert err == f"t2r: {old} is {new} now; see `t2r {verb} --help`\n"
        for line in re.findall(r"(?:t2r [\w-]+ )?--[\w-]+", new):
            *named, option = line.split()
            of = named[1] if named else verb
            assert any(option in p.opts for p in commands()[of].params if isinstance(p, click.Option)), new

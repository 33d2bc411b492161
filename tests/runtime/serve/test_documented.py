"""The requests of docs/serving.md are answered, and its table lists every option."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from runtime.serve.server import letters, running
from t2r_runtime.cli.serve import command

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_programs_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    bodies = [json.loads(body) for body in re.findall(r"-d '(.*?)'", PAGE)]
    assert len(bodies) == 2
    with running(letters(tmp_path, "storyteller", eos_tokens=())) as server:
        exec(program.replace(":8080", f":{server.port}"), {})
        for body in bodies:
            assert len(server.complete(**body)["choices"][0]["tokens"]) == body["max_tokens"]
    assert len(capsys.readouterr().out) == 41


def test_options_exist() -> None:
    known = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    code = re.findall(r"`(?!t2r-export )[^`\n]*`|^ {4}t2r-run serve.*$", PAGE, re.MULTILINE)
    said = set(re.findall(r"--[a-z-]+", "\n".join(code)))
    assert said - known == set()
    assert {
        "--rows",
        "--queue",
        "--keep",
        "--keep-mb",
        "--max-tokens",
        "--seconds",
        "--host",
        "--port",
        "--api-key",
    } <= said

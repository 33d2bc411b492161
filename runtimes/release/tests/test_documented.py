"""The command lines of README.md, of the quickstart and of each page's first block run as written, with the release."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cpp_build import ROOT
from documented import NOT_RUN, documented, lines, reason, run_as, stale

from cli_models import CONFIG, letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer

MODELS = ("SRC", "MODEL", "model.pt")  # names of a softmax model in the pages, and of its graphs, below
GRAPHS = ("in.onnx", "a.onnx")
TEXTS = ("text.txt", "held_out.txt", "train.txt")
# Runs the lines of a list from standard input, each in its folder, as the programs that the wheels install: in one
# process, since a start takes seconds. Prints the lines that fail, with their messages.
PROGRAM = r"""
import contextlib, importlib.metadata, io, json, os, pathlib, shlex, subprocess, sys

programs = {entry.name: entry for entry in reversed(importlib.metadata.entry_points(group="console_scripts"))}
failed = []
for folder, line in json.load(sys.stdin):
    os.chdir(folder)
    if "|" in line:
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={"PATH": path})
        code, out = done.returncode, io.StringIO(done.stdout + done.stderr)
    else:
        sys.argv = shlex.split(line)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = programs[sys.argv[0]].load()()
    if code:
        failed.append([line, code, out.getvalue()[-2000:]])
print(json.dumps(failed))
"""


@pytest.fixture
def pages(exported: Path, tmp_path: Path) -> Path:
    """A folder for each page, with the files that pages name but do not make."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name in MODELS:
        write_model(inputs / name, CONFIG)
    for name in GRAPHS:
        export(checkpoint.load(inputs / "SRC"), inputs / name)
    for name in TEXTS:
        (inputs / name).write_text("once upon a time, there was a recipe.\n<|endoftext|>\n" * 200)
    for page in {page for page, _ in documented()}:
        shutil.copytree(inputs, tmp_path / page)
        (tmp_path / page / "models").symlink_to(ROOT / "models")
    wide = dataclasses.replace(CONFIG, attention=HeadsConfig(heads=2, kv_heads=1, head_size=64))
    write_model(tmp_path / "docs/mixers.md/SRC", wide)  # the size that the lines name
    return tmp_path


def write_model(path: Path, config: UniformConfig) -> None:
    torch.manual_seed(1)
    checkpoint.save(path, Transformer(config.build()), letter_tokenizer(), {"origin": "random weights"})


def test_lines_run_as_written(exported: Path, pages: Path) -> None:
    found = [line for line in documented() if line[0] != "README.md" and reason(line) is None]
    assert len(found) > 30
    work = json.dumps([(str(pages / line[0]), run_as(line)) for line in found])
    command = [exported / "environment/bin/python", "-c", PROGRAM]
    done = subprocess.run(
        command, input=work, capture_output=True, text=True, timeout=600, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_reasons_are_of_lines() -> None:
    assert stale() == []
    assert all(why for starts in NOT_RUN.values() for why in starts.values())


def test_lines_of_a_page() -> None:
    page = "# A page\n\n    t2r one  # a remark\n    pip install a \\\n        b\n\nA text\n\n"
    page += "```\nt2r two\n  t2r picture\n```\n"
    assert list(lines(page, every=False)) == ["t2r one", "pip install a b"]
    assert list(lines(page, every=True)) == ["t2r one", "pip install a b", "t2r two"]

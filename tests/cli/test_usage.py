"""Every verb reports usage errors before heavy imports, and writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.types import FloatParamType, IntParamType

from cli.command_line import commands
from t2r_export.cli import VERBS, main

HEAVY = {"torch", "onnx", "onnxruntime", "transformers", "accelerate", "tokenizers"}
PROGRAM = """
import contextlib, io, json, sys
from t2r_export.cli import main

def ending(line):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main([sys.argv[1], *line.split()])
    return code, said.getvalue(), sorted({name.partition(".")[0] for name in sys.modules})

print(json.dumps([ending(line) for line in sys.argv[2:]]))
"""

# m.pt, t.txt, g.onnx, l.jsonl and r.toml exist, but have no readable content
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "convert": [
        ("none.pt o.pt", "a checkpoint at none.pt; received nothing"),
        ("org/name o.pt", "for a model of the hub, name hf:org/name"),
        ("m.pt o.onnx", "a name for a checkpoint"),
        ("m.pt m.pt --force", "an output that is not an input"),
        ("hf hf/model", "an output outside of input folders"),
        ("m.pt t", "no other file at t; received another file; name another file, or pass --force"),
        ("m.pt o.pt --layers some", "layers as all, softmax, none, every:N or 0,2,5"),
        ("m.pt o.pt --mixer linear:feature_size=0", "feature_size to be an integer"),
    ],
    "prune": [
        ("m.pt o.pt --share ffn=0.5 --data none.txt", "none.txt, which does not exist"),
        ("none.pt o.pt --share ffn=0.5 --data t.txt", "a checkpoint at none.pt; received nothing"),
        ("m.pt o.pt --share ffn=2 --data t.txt", "ffn of --share to be a number above 0 and below 1; received 2"),
        ("m.pt m.pt --share ffn=0.5 --data t.txt", "an output that is not an input"),
    ],
    "choose": [
        ("m.pt o.pt --budget 9k --data none.txt", "none.txt, which does not exist"),
        ("m.pt m.pt --budget 9k --data t.txt", "an output that is not an input"),
    ],
    "finetune": [
        ("m.pt o.pt --every validate=0", "validate of --every to be an integer from 1"),
        ("m.pt o.pt --data t.txt --plan inf", "--plan to be a finite number above 0; received 'inf'"),
        ("m.pt o.pt --data none.txt", "none.txt, which does not exist"),
        ("none.pt o.pt --data t.txt", "a checkpoint at none.pt"),
        ("m.pt o.pt --data t.txt --teacher none.pt", "a checkpoint at none.pt"),
        ("m.pt t.txt --data t.txt", "a name for a checkpoint"),
        ("m.pt t --data t", "an output that is not an input"),
        ("m.pt t --data t.txt", "no other file at t; received another file; name another file, or pass --force"),
        ("m.pt o.pt --data t.txt --steps 1,2,3", "2 steps"),
        ("m.pt o.pt --data t.txt --batch 0", "batch to be an integer"),
        ("m.pt o.pt --data t.txt --loss hidden=inf", "hidden of --loss to be a number from 0; received 'inf'"),
        ("m.pt no/o.pt --data t.txt", "no folder no"),
    ],
    "save": [
        ("none.onnx o.onnx --as compiled --provider qnn", "none.onnx, which does not exist"),
        ("g.onnx g.onnx --as compiled --provider qnn", "an output that is not an input"),
        ("g.onnx o.ort --as compiled --provider qnn", "a name for a compiled graph"),
        ("g.onnx o.onnx --as compiled --provider toaster", "a provider of: cpu"),
        ("g.onnx o.onnx --as compiled --provider qnn:x", "KEY=VALUE"),
        ("none.onnx web --as web", "none.onnx, which does not exist"),
        ("g.onnx web --as web:weights=float16", "options of web (page, peer); received weights"),
        ("g.onnx web --as web --provider qnn", "--as compiled with --provider; received none"),
        ("none.pt f --as marian", "a checkpoint at none.pt; received nothing"),
        ("m.pt hf --as pegasus", "a new or empty folder to write to; received hf"),
        ("m.pt t.txt --as marian", "a new or empty folder to write to; received t.txt"),
        ("m.pt f --as bart", "a form of transformers, marian, pegasus, t2r, adapter, web, compiled; received 'bart'"),
        ("m.pt f --as t2r:weights=float8", "weights to be one of float32, float16; received 'float8'"),
        ("m.pt f --as transformers:bench=none.json", "a report to read; received none.json, which does not exist"),
        ("m.pt m.pt --as t2r", "an output that is not an input"),
    ],
    "sample": [
        ("none.pt o.npy --tokens 9", "a checkpoint at none.pt"),
        ("m.pt o.txt --tokens 9", "a name for a file of token ids"),
        ("m.pt o.npy --tokens 0", "--tokens to be an integer from 1 to 2147483647; received '0'"),
        ("m.pt o.npy --tokens 9 --temperature 0", "--temperature to be a finite number above 0; received '0'"),
    ],
    "tokenize": [
        ("m.pt", "a MODEL and a TEXT, or neither; received a MODEL alone"),
        ("m.pt t.txt --remove all", "--remove alone; received a model, or --split"),
        ("--remove all --split by=hash", "--remove alone; received a model, or --split"),
        ("none.pt t.txt", "a checkpoint at none.pt"),
        ("m.pt none.txt", "none.txt, which does not exist"),
        ("m.pt t.txt --split by=dice", "by of --split to be one of order, hash"),
    ],
    "evaluate": [
        ("none.onnx t.txt", "none.onnx, which does not exist"),
        ("g.onnx none.txt", "none.txt, which does not exist"),
        ("g.onnx t.txt --provider toaster", "a provider of: cpu"),
        ("g.onnx t.txt --windows 3", "a checkpoint and a text"),
        ("m.pt t.txt --provider cpu", "an exported graph and a text with --provider"),
        ("none.pt t.txt", "a checkpoint at none.pt"),
        ("m.pt none.txt", "none.txt, which does not exist"),
        ("m.pt t.txt --lengths 8;9", "lengths as integers"),
        ("m.pt t.txt --lengths 0", "lengths as integers from 4, separated by commas; received '0'"),
    ],
    "export": [
        ("none.pt o.onnx", "a checkpoint at none.pt"),
        ("m.pt m.pt", "a name for a graph"),
        ("m.pt a:b.onnx", "a file name of printable characters other than \\ and :; received a:b.onnx"),
        ("m.pt o.onnx --batch 0", "batch to be an integer from 1"),
        ("m.pt o.onnx --target portable:output_hidden=true", "--target "),
        ("m.pt o.onnx --quantize w4 --check none.txt", "none.txt, which does not exist"),
        ("m.pt o.onnx --quantize int8-static", "a text to calibrate"),
        ("m.pt o.onnx --calibrate t.txt", "--quantize with --calibrate"),
        ("m.pt o.ort --prefill", "an .onnx, that shares its weights"),
        ("m.pt link.onnx", "a regular file at link.onnx, or nothing; received a link to g.onnx"),
        ("m.pt pipe.onnx", "received a pipe"),
    ],
    "quantize": [
        ("none.onnx o.onnx --scheme w8", "none.onnx, which does not exist"),
        ("g.onnx g.onnx --scheme w8", "an output that is not an input"),
        ("g.onnx o.pt --scheme w8", "a name for a graph"),
        ("g.onnx o.onnx --scheme w8 --calibrate t.txt", "options that w8 takes"),
        ("g.onnx o.onnx --scheme int8-static --calibrate none.txt", "none.txt, which does not exist"),
    ],
    "verify": [
        ("m.pt", "expected GRAPH; received none"),
        ("none.pt g.onnx", "a checkpoint at none.pt"),
        ("m.pt none.onnx", "none.onnx, which does not exist"),
        ("m.pt g.onnx --provider toaster", "a provider of: cpu"),
        ("m.pt g.onnx --steps 0", "--steps to be an integer from 1 to 2147483647; received '0'"),
    ],
    "generate": [
        ("none.onnx", "none.onnx, which does not exist"),
        ("g.onnx --save-state g.onnx", "a name for a saved state"),
        ("g.onnx --save-state g.onnx.0123456789ab.data", "an output that is not an input"),
        ("g.onnx --save-state m", "a regular file at m, or nothing; received a link"),
        ("g.onnx --load-state none.npz", "none.npz, which does not exist"),
        ("g.onnx --ids 1,x", "token ids as 1,2,3"),
        ("g.onnx --temperature -1", "a temperature"),
        ("g.onnx --provider toaster", "a provider of: cpu"),
    ],
    "chat": [
        ("none.onnx", "none.onnx, which does not exist"),
        ("g.onnx --provider toaster", "a provider of: cpu"),
    ],
    "score": [
        ("none.onnx t.txt", "none.onnx, which does not exist"),
        ("g.onnx t.txt --provider toaster", "a provider of: cpu"),
    ],
    "serve": [
        ("none.onnx", "none.onnx, which does not exist"),
        ("g.onnx --provider toaster", "a provider of: cpu"),
        ("g.onnx --port 65536", "--port to be an integer from 0 to 65535; received '65536'"),
        ("g.onnx --allow-host http://here", "a host name or * as --allow-host; received http://here"),
    ],
    "translate": [
        ("none.onnx", "none.onnx, which does not exist"),
        ("g.onnx --provider toaster", "a provider of: cpu"),
        ("g.onnx --beam 0", "--beam to be an integer from 1 to 2147483647; received '0'"),
        ("g.onnx --beam 2 --n-best 3", "n_best of at most the width, 2; received 3"),
        ("g.onnx --length-penalty 11", "a length_penalty from -10.0 to 10.0; received 11.0"),
    ],
    "inspect": [("none.pt", "a checkpoint at none.pt")],
    "bench": [("none.onnx", "none.onnx, which does not exist"), ("g.onnx --provider toaster", "a provider of: cpu")],
    "distill": [
        ("m.pt o", "--data; received none"),
        ("none.pt o --data t.txt", "a checkpoint at none.pt"),
        ("m.pt o --data none.txt", "none.txt, which does not exist"),
        ("m.pt hf --data t.txt", "a new or empty folder to write to; received hf"),
        ("m.pt hf/o --data .", "an output outside of input folders; received hf/o/tuned.pt"),
        ("m.pt o --data t.txt --mixer window", "window for the mixer window; received none"),
        ("m.pt o --data t.txt --steps x", "steps as numbers separated by commas; received 'x'"),
        ("m.pt o --data t.txt --hours 0", "--hours to be a finite number above 0; received '0'"),
        ("m.pt o --data t.txt --download", "a model hf:OWNER/NAME with --download; received m.pt"),
    ],
    "build": [
        ("none.toml --work w", "a recipe in none.toml"),
        ("r.toml --work w", "in r.toml the key text; received none"),
        ("t --work w", "a recipe in t; received"),
    ],
    "demo": [("none.pt", "a model at none.pt; received nothing")],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    for name in ("m.pt", "t.txt", "g.onnx", "g.onnx.0123456789ab.data", "l.jsonl", "r.toml", "hf/model"):
        (tmp_path / name).write_text("# nothing\n")
    (tmp_path / "t").write_text("no = recipe = here\n")
    (tmp_path / "link.onnx").symlink_to("g.onnx")
    (tmp_path / "m").symlink_to("m.pt")
    os.mkfifo(tmp_path / "pipe.onnx")
    return tmp_path


def test_run_verbs() -> None:
    assert set(VERBS) == set(MISTAKES)


@pytest.mark.parametrize("verb", MISTAKES)
def test_invalid_arguments_fail_before_work(verb: str, folder: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    lines, messages = zip(*MISTAKES[verb], strict=True)
    arguments = [sys.executable, "-c", PROGRAM, verb, *lines]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=folder)
    for line, message, (code, said, modules) in zip(lines, messages, json.loads(done.stdout), strict=True):
        assert code == 2, (line, said)
        assert said.count("\n") == 1 and message in said, (line, said)
        assert not HEAVY & set(modules), line
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def options(verb: str, kind: type[click.ParamType]) -> list[click.Option]:
    """The options of a verb with values of a type."""
    return [p for p in commands()[verb].params if isinstance(p, click.Option) and isinstance(p.type, kind)]


def operands(verb: str) -> list[str]:
    """A value for each argument of a verb."""
    return ["x"] * sum(isinstance(p, click.Argument) for p in commands()[verb].params)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if options(verb, IntParamType)])
def test_integer_overflow_in_every_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before any input is read; the bound is 2^31 - 1, for seeds 2^63 - 1."""
    arguments = operands(verb)
    for option in options(verb, IntParamType):
        for number in (1 << 63, -(1 << 63), 10**30, "9" * 5000, *(() if option.name == "seed" else (1 << 31,))):
            assert main([verb, *arguments, f"{option.opts[0]}={number}"]) == 2, (option.opts, number)
            said = capsys.readouterr().err
            assert said.startswith(f"t2r: expected {option.opts[0]} to be an integer"), said
            assert said.count("\n") == 1, said


@pytest.mark.parametrize("verb", [verb for verb in VERBS if options(verb, FloatParamType)])
def test_number_that_is_not_finite_in_every_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before any input is read."""
    for option in options(verb, FloatParamType):
        for number in ("nan", "inf", "-inf", "1e400"):
            assert main([verb, *operands(verb), f"{option.opts[0]}={number}"]) == 2, (option.opts, number)
            said = capsys.readouterr().err
            assert said.startswith(f"t2r: expected {option.opts[0]} to be a finite number"), said
            assert said.endswith(f"; received '{number}'; see `t2r {verb} --help`\n"), said

"""The command line from the outside: output, its stream, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import folders
from cli_models import Output, run
from t2r_export.cli import VERBS, export_main
from t2r_export.cli.output import size
from t2r_runtime import Decoder


def test_help_lists_the_verbs(capsys: Output) -> None:
    out, err = run(capsys, "--help")
    assert err == ""
    for verb, (_, text) in VERBS.items():
        assert f"  {verb}" in out
        assert text in " ".join(out.split())  # click breaks long lines


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb: str, capsys: Output) -> None:
    out, _ = run(capsys, verb, "--help")
    assert out.startswith(f"Usage: t2r {verb}")


@pytest.mark.parametrize("verb", VERBS)
def test_h_is_help(verb: str, capsys: Output) -> None:
    assert run(capsys, verb, "-h") == run(capsys, verb, "--help")


def test_version(capsys: Output) -> None:
    assert run(capsys, "--version") == ("t2r-export 0.1.0, graph contract 1\n", "")
    assert export_main(["--version"]) == 0
    assert capsys.readouterr().out == "t2r-export 0.1.0, graph contract 1\n"


def test_t2r_export_equals_t2r_export_verb(folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, err = run(capsys, "export", folder / "t2r.pt", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (folder / "t2r.onnx").read_bytes()
    assert "again.onnx: " in out
    assert "2 linear" in out
    assert err == ""


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "Missing command"),
        (["quantise"], "expected a verb of t2r; received 'quantise'; did you mean quantize?"),
        (["convert"], "expected SOURCE; received none; see `t2r convert --help`"),
        (["convrt"], "expected a verb of t2r; received 'convrt'; did you mean convert?"),
        (["nothing"], "expected a verb of t2r; received 'nothing'; see `t2r --help`"),
        (["convert", "a", "b", "--mixer", "linaer"], "received 'linaer'; did you mean linear?"),
        (
            ["convert", "a", "b", "--mixer", "linear:feature_size"],
            "expected KIND:NAME=VALUE,NAME=VALUE, each NAME once",
        ),
        (["finetune", "a", "b", "--plan"], "Option '--plan' requires an argument; see `t2r finetune --help`"),
        (["export", "nothing.pt", "out.onnx"], "expected a checkpoint at nothing.pt; received nothing; pass"),
        (["generate", "nothing.onnx"], "nothing.onnx, which does not exist; check the path"),
    ],
)
def test_usage_errors(
    arguments: list[str], message: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, *arguments, code=2)
    assert out == ""
    assert arguments == [] or err.count("\n") == 1
    assert arguments == [] or (err.startswith("t2r: ") and message in err)
    assert list(tmp_path.iterdir()) == []


def test_inspect_folder(tmp_path: Path, capsys: Output) -> None:
    source = folders.write_llama(tmp_path / "llama", max_position_embeddings=77)
    out, _ = run(capsys, "inspect", source)
    assert "positions: rotary" in out
    assert "reach: no end; its config.json names 77 positions\n" in out


@pytest.mark.parametrize("model, grows", [("t2r.pt", False), ("model.pt", True)])
def test_export_says_how_states_grow(model: str, grows: bool, folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, _ = run(capsys, "export", folder / model, tmp_path / "m.onnx")
    states = Decoder(tmp_path / "m.onnx").signature.states
    start, then = (sum(state.bytes(length=length) for state in states) for length in (0, 1))
    assert (then > start) is grows
    assert (
        f"state: {size(start)} per sequence, {f'and {size(then - start)} per token' if grows else 'constant'}\n" in out
    )


def test_export_json(folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, _ = run(capsys, "export", folder / "model.pt", tmp_path / "teacher.onnx", "--batch", 3, "--json")
    result = json.loads(out)
    assert result["files"] == {str(tmp_path / "teacher.onnx"): (tmp_path / "teacher.onnx").stat().st_size}
    assert [fold["folded"] for fold in result["folds"]] == [False, False]


@pytest.mark.parametrize("mixer", ["linear:feature_size=3", "lstm"])
def test_export_for_prompts(
    mixer: str,
    folder: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: Output,
) -> None:
    source = tmp_path_factory.mktemp("converted") / "model.pt"
    run(capsys, "convert", folder / "model.pt", source, "--mixer", mixer)
    out, _ = run(capsys, "export", source, tmp_path / "g.onnx", "--prefill", "--top-k", 2)
    assert "prefill graph: reads many tokens of a prompt per run\n" in out
    assert len(list(tmp_path.iterdir())) == 3
    assert Decoder(tmp_path / "g.onnx").signature.top_k == 2
    out, _ = run(capsys, "quantize", tmp_path / "g.onnx", tmp_path / "q.onnx", "--scheme", "int8")
    assert "no prefill graph: int8 rounds" in out


def test_inspect(folder: Path, capsys: Output) -> None:
    for name in ("model.pt", "t2r.pt", "t2r.onnx"):
        out, err = run(capsys, "inspect", folder / name)
        assert f"{name}: a " in out
        assert err == ""
        result = json.loads(run(capsys, "inspect", folder / name, "--json")[0])
        assert [layer["parts"][0]["inside"]["kind"] for layer in result["layers"]] == [
            "softmax" if name == "model.pt" else "linear"
        ] * 2


def test_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "t2r_export"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: t2r [OPTIONS]")

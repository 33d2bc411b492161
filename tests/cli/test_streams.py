"""Closed and full standard streams, and lines and paths that are empty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli_models import Output, run


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`t2r` with arguments, in a shell that redirects its streams."""
    words = [sys.executable, "-m", "t2r_export", *map(str, arguments)]
    return subprocess.run(["sh", "-c", f'"$@" {command}', "sh", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_keep_the_exit_code(streams: str, folder: Path, tmp_path: Path) -> None:
    assert shell(streams, "export", folder / "t2r.pt", tmp_path / "g.onnx").returncode == 0
    assert (tmp_path / "g.onnx").exists()
    done = shell(streams, "inspect", tmp_path / "nothing.onnx")
    assert done.returncode == 2
    assert done.stderr.count("\n") == ("2>&-" not in streams)


def test_closed_stdin_is_empty(folder: Path) -> None:
    words = ["generate", folder / "t2r.onnx", "--prompt-file", "-", "--max-tokens", 2, "--seed", 1]
    closed, empty = (shell(stdin, *words) for stdin in ("<&-", "< /dev/null"))
    assert (closed.returncode, closed.stdout) == (0, empty.stdout)
    assert closed.stdout.strip()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="cannot exist on this machine: /dev/full")
def test_full_stdout_is_named(folder: Path) -> None:
    done = shell("> /dev/full", "inspect", folder / "t2r.onnx")
    assert done.returncode == 2
    assert "expected access to stdout; received No space left on device" in done.stderr


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"prompt": "one", "ids": [1]}', 'one of "prompt" and "ids"; received both'),
        ("", "a JSON object; received an empty line"),
    ],
)
def test_lines_that_are_refused(line: str, message: str, folder: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "in.jsonl").write_text(f"{line}\n")
    places = ["--jsonl", tmp_path / "in.jsonl", tmp_path / "out.jsonl"]
    run(capsys, "generate", folder / "t2r.onnx", *places, "--max-tokens", 2, code=2)
    assert message in (tmp_path / "out.jsonl").read_text().replace('\\"', '"')


@pytest.mark.parametrize("places", [("-", "out.jsonl"), ("in.jsonl", "-")])
def test_lines_are_no_streams(places: tuple[str, str], folder: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "one"}\n')
    names = [name if name == "-" else tmp_path / name for name in places]
    _, err = run(capsys, "generate", folder / "t2r.onnx", "--jsonl", *names, "--max-tokens", 2, code=2)
    assert "expected two file names for --jsonl; received -" in err


@pytest.mark.parametrize("option", ["--save-state", "--load-state"])
def test_empty_paths_are_refused(option: str, folder: Path, capsys: Output) -> None:
    _, err = run(capsys, "generate", folder / "t2r.onnx", option, "", "--max-tokens", 2, code=2)
    assert f"expected a file name for {option}; received an empty one" in err


def test_prompt_that_is_not_utf8(folder: Path, capsys: Output) -> None:
    _, err = run(capsys, "generate", folder / "t2r.onnx", "--prompt", "a\udcff", "--max-tokens", 2, code=2)
    assert "received bytes that are not UTF-8 at character 2" in err

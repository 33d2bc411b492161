"""`--jsonl IN OUT`: each line gets the answer it would get alone, errors by line number; interrupted runs resume."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cli_models import LETTERS, Output, letter_tokenizer
from runtime import graphs, translators
from t2r_runtime import Decoder, Sampling
from t2r_runtime.cli import main
from t2r_runtime.cli.bulk import Bulk
from t2r_runtime.files import locked

GREEDY = ["--temperature", "0", "--max-tokens", "9"]
DRAWN = ["--seed", "3", "--max-tokens", "9"]
PROMPTS = ["abc", "b", "", "cafe", "gag", "kid"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    letters = letter_tokenizer(LETTERS[: graphs.VOCABULARY])
    return graphs.save(tmp_path_factory.mktemp("bulk") / "g.onnx", eos_tokens=(), tokenizer=letters)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    return translators.save(tmp_path_factory.mktemp("bulk") / "t", 1, **texts)


def run(*arguments: object, code: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == code


def answered(folder: Path, lines: list[Any], *arguments: object, code: int = 0) -> list[Any]:
    """The parsed OUT file of a command; `lines` are objects or raw bytes."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (folder / "in.jsonl").write_bytes(b"\n".join(raw))
    run(*arguments, "--jsonl", folder / "in.jsonl", folder / "out.jsonl", code=code)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("options", [GREEDY, DRAWN, [*GREEDY, "--stop", "c", "--stop", "fa"]])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_jsonl_equals_single_lines(options: list[str], width: int, graph: Path, tmp_path: Path, capsys: Output) -> None:
    lines = [{"prompt": prompt, "name": [number, "ü"]} for number, prompt in enumerate(PROMPTS)]
    found = answered(tmp_path, lines, "generate", graph, *options, "--rows", width)
    for line, answer in zip(lines, found, strict=True):
        capsys.readouterr()
        run("generate", graph, "--prompt", line["prompt"], *options, "--json")
        alone = json.loads(capsys.readouterr().out)
        assert answer == {**line, "tokens": alone["tokens"], "text": alone["text"]}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("width", [1, 3])
def test_token_ids_need_no_tokenizer(width: int, tmp_path: Path) -> None:
    graph = graphs.save(tmp_path / "g.onnx")
    lines = [{"ids": [3, 4]}, {"prompt": "a"}]
    found = answered(tmp_path, lines, "generate", graph, *GREEDY, "--rows", width, code=2)
    expected = Decoder(graph).generate([3, 4], 9, Sampling(temperature=0))
    assert found[0] == {"ids": [3, 4], "tokens": expected, "text": None}
    assert found[1]["error"].startswith("expected a graph with a tokenizer")


BAD = [
    b"no json",
    b"[1]",
    b"",
    b'{"prompt": 1}',
    b"{}",
    b'{"prompt": "\\ud800"}',
    b"\xff",
    b"[" * 100000,
    b'{"ids": []}',
    b'{"ids": [99]}',
    b'{"ids": {"a": 1}}',
    b'{"ids": [1, [2]]}',
    b'{"n": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("width", [1, 4])
def test_invalid_line_reports_number(width: int, graph: Path, tmp_path: Path, capsys: Output) -> None:
    lines = [{"prompt": "a"}, *BAD, {"prompt": "b"}]
    found = answered(tmp_path, lines, "generate", graph, *GREEDY, "--rows", width, code=2)
    assert [each.get("line") for each in found] == [None, *range(2, len(BAD) + 2), None]
    assert all(each["error"].startswith("expected ") for each in found[1:-1])
    assert "; received a line that is no JSON (Expecting value at character 1); " in found[1]["error"]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said[:-1]] == [f"line {number}" for number in range(2, len(BAD) + 2)]
    assert f"received {len(BAD)} without: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …; see " in said[-1]


def test_line_too_long(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2r_runtime.cli.bulk.MAX_LINE", 20)
    lines = [b'{"prompt": "abc"}', b'{"prompt": "%s"}' % (b"a" * 50), b'{"prompt": "b"}']
    found = answered(tmp_path, lines, "generate", graph, *GREEDY, code=2)
    assert ["error" in line for line in found] == [False, True, False]


@pytest.mark.parametrize("width", [1, 3])
def test_an_interrupted_run_is_resumed(
    width: int, graph: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prompt": prompt} for prompt in PROMPTS]
    lines.insert(1, {"prompt": 5})
    command = ["generate", graph, *GREEDY, "--rows", width]
    whole = answered(tmp_path, lines, *command, code=2)
    put, count = Bulk.put, 0

    def counted(self: Bulk, number: int, answer: Any) -> None:
        nonlocal count
        put(self, number, answer)
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    (tmp_path / "out.jsonl").unlink()
    monkeypatch.setattr(Bulk, "put", counted)
    run(*command, "--jsonl", tmp_path / "in.jsonl", tmp_path / "out.jsonl", code=130)
    assert not (tmp_path / "out.jsonl").exists()
    [part] = tmp_path.glob(".out.jsonl.*.lines")
    done = part.read_bytes().count(b"\n")
    assert done >= 2
    with part.open("ab") as file:
        file.write(b'{"prompt": "ca')  # a partial line
    capsys.readouterr()
    count = 100
    assert answered(tmp_path, lines, *command, code=2) == whole
    assert count == 100 + len(lines) - done
    said = capsys.readouterr().err
    assert f"resuming after {done} answered lines" in said
    assert "received 1 without: 2; see " in said


def test_other_options_start_again(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / ".out.jsonl.0123abcd.lines"
    part.write_text('{"prompt": "a", "text": "of other options"}\n')
    found = answered(tmp_path, [{"prompt": "a"}], "generate", graph, *GREEDY)
    assert found[0]["text"] != "of other options"
    assert not part.exists()


def test_jsonl_out_conflicts(graph: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "notes").write_text("of a year")
    others = {"notes": "another file", "in.jsonl": "for both", "none/x": "no folder", "x.pt": "x.pt"}
    for out, message in others.items():
        run("generate", graph, *GREEDY, "--jsonl", tmp_path / "in.jsonl", tmp_path / out, code=2)
        assert message in capsys.readouterr().err
    with locked(tmp_path / "out", wait=False):
        run("generate", graph, *GREEDY, "--jsonl", tmp_path / "in.jsonl", tmp_path / "out", code=2)
    assert "exclusive access to" in capsys.readouterr().err
    run("generate", graph, "--prompt", "a", "--jsonl", tmp_path / "in.jsonl", tmp_path / "out", code=2)
    assert "expected --jsonl alone; received a prompt, a state or a draft; leave it out" in capsys.readouterr().err
    for command in (("generate", graph, "--prompt", "a"), ("score", graph, tmp_path / "notes")):
        run(*command, "--rows", 1, code=2)
        assert "expected --jsonl with --rows; received none; leave --rows out" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "notes"]


@pytest.mark.parametrize("rows", [1, 2])
def test_scores(rows: int, graph: Path, tmp_path: Path, capsys: Output) -> None:
    lines = [{"text": "abcabc", "nats": 0}, {"text": "a"}, {"text": "kid"}]
    first, bad, last = answered(tmp_path, lines, "score", graph, "--rows", rows, code=2)
    assert bad["line"] == 2
    for line, answer in ((lines[0], first), (lines[2], last)):
        (tmp_path / "text").write_text(str(line["text"]))
        capsys.readouterr()
        run("score", graph, tmp_path / "text", "--json")
        alone = json.loads(capsys.readouterr().out)
        expected = {**line, **{key: value for key, value in alone.items() if key != "placement"}}
        assert answer.keys() == expected.keys()
        for key, value in expected.items():
            assert answer[key] == (value if key in ("text", "tokens") else pytest.approx(value, rel=1e-5))
    run("score", graph, code=2)
    assert "expected one of TEXT and --jsonl; received" in capsys.readouterr().err


def test_progress_counts_lines(graph: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the lines left after an interrupted run."""
    monkeypatch.setattr("t2r_runtime.cli.progress.LOG_SECONDS", 0)
    answered(tmp_path, [{"prompt": prompt} for prompt in PROMPTS], "generate", graph, *GREEDY, "--rows", 2)
    said = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [f"lines answered: {done} of 6" for done in range(1, 7)]


@pytest.mark.parametrize("width", [1, 3])
def test_translations(
    width: int, translator: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ["bad", "", "a", "lid. cab", "fed"]
    lines = [{"source": source, "id": number} for number, source in enumerate(sources)]
    lines.insert(2, {"source": "a" * 13, "id": -1})  # longer than the model's limit
    command = ["translate", translator, "--max-tokens", "7", "--rows", width]
    found = answered(tmp_path, lines, *command, code=2)
    assert found.pop(2)["line"] == 3
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(sources).encode())))
    capsys.readouterr()
    run(*command, "--json")
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{key: line[key] for key in ("source", "translations")} for line in found] == alone
    assert [line["id"] for line in found] == [0, 1, 2, 3, 4]

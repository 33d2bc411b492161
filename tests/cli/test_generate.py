"""`t2r generate`: texts, prompts, limits, saved states and streams."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import export_main
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder


def test_only_text_on_stdout(folder: Path, capsys: Output) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--prompt", "one day", "--max-tokens", 9, "--temperature", 0]
    out, err = run(capsys, *arguments)
    assert len(out) == 9
    assert err.startswith("one day\n7 tokens read, 9 written in ")
    result = json.loads(run(capsys, *arguments, "--json")[0])
    assert result["text"] == out
    assert [LETTERS[token] for token in result["tokens"]] == list(out)


def test_prompt_file(folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 9, "--temperature", 0]
    expected = run(capsys, *arguments, "--prompt", "one day")[0]
    (tmp_path / "p.txt").write_text("one day")
    assert run(capsys, *arguments, "--prompt-file", tmp_path / "p.txt")[0] == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one day")))
    assert run(capsys, *arguments, "--prompt-file", "-")[0] == expected
    _, err = run(capsys, *arguments, "--prompt-file", tmp_path / "p.txt", "--ids", "1", code=2)
    assert "expected one of --prompt, --prompt-file and --ids; received several" in err


def test_stop_string_excluded(folder: Path, capsys: Output) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--prompt", "one day", "--max-tokens", 30, "--seed", 1]
    whole = run(capsys, *arguments)[0]
    for stop in (whole[5:7], whole[29], "no such text"):
        out = run(capsys, *arguments, "--stop", "nor this", "--stop", stop)[0]
        assert out == whole.partition(stop)[0]
        result = json.loads(run(capsys, *arguments, "--stop", stop, "--json")[0])
        assert result["text"] == out and len(result["tokens"]) == min(len(out) + len(stop), 30)
    for wrong, message in (
        (["--stop", ""], "expected a text for --stop; received an empty one"),
        (["--stop", "a", "--ids", "1"], "expected a prompt that is text with --stop; received --ids"),
    ):
        given = arguments if "--ids" not in wrong else [*arguments[:2], *arguments[4:]]
        assert message in run(capsys, *given, *wrong, code=2)[1]


def test_empty_prompt_starts_from_bos(folder: Path, capsys: Output) -> None:
    result = json.loads(run(capsys, "generate", folder / "t2r.onnx", "--max-tokens", 3, "--seed", 5, "--json")[0])
    assert result["prompt"] == [CONFIG.bos_token]
    assert len(result["tokens"]) == 3


def test_seed_and_limits(folder: Path, capsys: Output) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 30, "--threads", 1, "--provider", "cpu"]
    first, again, other = (run(capsys, *arguments, "--seed", seed)[0] for seed in (1, 1, 2))
    assert first == again != other
    greedy = run(capsys, *arguments, "--temperature", 0)[0]
    assert run(capsys, *arguments, "--top-k", 1)[0] == run(capsys, *arguments, "--top-p", 1e-9)[0] == greedy
    assert run(capsys, *arguments, "--min-p", 1)[0] == greedy


def test_by_default_a_text_ends_where_positions_do(tmp_path: Path, capsys: Output) -> None:
    torch.manual_seed(1)
    model = Transformer(dataclasses.replace(CONFIG, position="learned", max_positions=23).build())
    checkpoint.save(tmp_path / "short.pt", model, letter_tokenizer(), {"origin": "random weights"})
    run(capsys, "convert", tmp_path / "short.pt", tmp_path / "t2r.pt", "--mixer", "linear:feature_size=5")
    assert export_main([str(tmp_path / "t2r.pt"), str(tmp_path / "short.onnx")]) == 0
    arguments = ["generate", tmp_path / "short.onnx", "--prompt", "it was", "--seed", 3]
    written = json.loads(run(capsys, *arguments, "--json")[0])["tokens"]
    assert len(written) == 23 - len("it was") + 1  # the last token is not read
    (tmp_path / "in.jsonl").write_text('{"prompt": "it was"}\n' * 3)
    for rows in (1, 2):
        places = ["--jsonl", tmp_path / "in.jsonl", tmp_path / f"out{rows}.jsonl"]
        run(capsys, "generate", tmp_path / "short.onnx", "--seed", 3, "--rows", rows, *places)
        lines = (tmp_path / f"out{rows}.jsonl").read_text().splitlines()
        assert [json.loads(line)["tokens"] for line in lines] == [written] * 3
    _, err = run(capsys, *arguments, "--max-tokens", 19, code=2)
    assert "expected max_tokens of at most 18: this model's positions end at 23; received 19 after 6 tokens" in err


def test_too_many_rows_for_the_memory(folder: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "it was"}\n')
    places = ["--jsonl", tmp_path / "in.jsonl", tmp_path / "out.jsonl"]
    _, err = run(capsys, "generate", folder / "t2r.onnx", "--rows", 10**9, *places, code=2)
    assert err.startswith("t2r: expected states of at most ") and err.endswith(
        "; choose a smaller batch (fewer rows)\n"
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_penalties(folder: Path, capsys: Output) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--prompt", "it so", "--max-tokens", 12, "--temperature", 0]
    once = run(capsys, *arguments, "--no-repeat-ngram", 1)[0]
    assert len({*once, *"it so"}) == 12 + 5
    assert run(capsys, *arguments, "--repetition-penalty", 100)[0] != run(capsys, *arguments)[0]
    _, err = run(capsys, *arguments, "--repetition-penalty", 0, code=2)
    assert "expected a repetition_penalty from 0.01 to 100 (1 is none); received 0.0; choose another value" in err


def test_load_state_continues(folder: Path, tmp_path: Path, capsys: Output) -> None:
    state, graph = tmp_path / "state.npz", folder / "t2r.onnx"
    tail = ["--temperature", 0, "--max-tokens", 8]
    whole = run(capsys, "generate", graph, "--prompt", "it was so.", *tail)[0]
    assert run(capsys, "generate", graph, "--prompt", "it was", "--max-tokens", 0, "--save-state", state)[0] == ""
    assert run(capsys, "generate", graph, "--load-state", state, "--prompt", " so.", *tail)[0] == whole


def test_save_state_after_generate(folder: Path, tmp_path: Path, capsys: Output) -> None:
    state, graph, greedy = tmp_path / "state.npz", folder / "t2r.onnx", ["--temperature", 0]
    first = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 5, *greedy, "--save-state", state)[0]
    tail = ["--max-tokens", 4, *greedy]
    whole = run(capsys, "generate", graph, "--prompt", f"it{first} so", *tail)[0]
    assert run(capsys, "generate", graph, "--load-state", state, "--prompt", " so", *tail)[0] == whole


def test_load_state_without_prompt(folder: Path, tmp_path: Path, capsys: Output) -> None:
    state, graph, greedy = tmp_path / "state.npz", folder / "t2r.onnx", ["--temperature", 0]
    whole = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 9, *greedy)[0]
    first = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 5, *greedy, "--save-state", state)[0]
    then = ["generate", graph, "--load-state", state, "--max-tokens", 4, *greedy]
    assert first + run(capsys, *then)[0] == whole
    assert first + run(capsys, *then, "--ids", "")[0] != whole  # as token ids
    assert run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 0, "--save-state", state)[0] == ""
    assert run(capsys, *then[:-4], "--max-tokens", 9, *greedy)[0] == whole


def test_saved_state_without_a_token_needs_a_prompt(folder: Path, tmp_path: Path, capsys: Output) -> None:
    state, graph = tmp_path / "state.npz", folder / "t2r.onnx"
    decoder = Decoder(graph)
    decoder.prefill([1, 2])
    decoder.save_state(state)
    _, err = run(capsys, "generate", graph, "--load-state", state, code=2)
    assert err == (
        "t2r: expected a prompt to continue a saved state with; received an empty one; pass one with --prompt\n"
    )


def test_token_numbers(folder: Path, capsys: Output) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--ids", "3,1", "--max-tokens", 4, "--temperature", 0]
    numbers = [int(number) for number in run(capsys, *arguments)[0].split()]
    result = json.loads(run(capsys, *arguments, "--json")[0])
    assert (result["prompt"], result["tokens"], result["text"]) == ([3, 1], numbers, None)
    _, err = run(capsys, "generate", folder / "t2r.onnx", "--ids", "3,x", code=2)
    assert err == "t2r: expected token ids as 1,2,3; received '3,x'; correct --ids\n"


def test_reports_a_split(folder: Path, capsys: Output, pretender: str) -> None:
    arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 4, "--seed", 1, "--provider"]
    _, err = run(capsys, *arguments, pretender, code=2)
    assert err.startswith("t2r: expected every node on nowhere; received ")
    arguments.append(f"{pretender}+cpu")
    _, err = run(capsys, *arguments)
    nodes = len(onnx.load(folder / "t2r.onnx").graph.node)
    assert err.endswith(f" tokens/s\nnowhere runs 0 of {nodes} nodes, cpu {nodes}\n")
    assert json.loads(run(capsys, *arguments, "--json")[0])["placement"] == {"cpu": nodes}


def test_streams(folder: Path) -> None:
    """Text is streamed; Ctrl-C ends the process with one line, a closed pipe with none."""
    command = [
        sys.executable,
        "-m",
        "t2r_export",
        "generate",
        str(folder / "t2r.onnx"),
        "--max-tokens",
        "100000000",
    ]
    for send, code, last in ((signal.SIGINT, 130, b"t2r: interrupted\n"), (None, 141, b"")):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the child inherits ignored signals
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        signal.signal(signal.SIGINT, before)
        assert process.stdout
        assert process.stderr
        assert len(process.stdout.read(50)) == 50
        if send is not None:
            process.send_signal(send)
            process.stdout.read()
        process.stdout.close()
        assert process.stderr.read() == last
        process.stderr.close()
        assert process.wait() == code

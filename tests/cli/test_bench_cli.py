"""`t2r bench` from the command line: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small
from cli_models import Output, letter_tokenizer, run
from runtime import translators
from t2r_export.config.bench import BenchConfig
from t2r_export.providers import bench as module
from t2r_export.providers.bandwidth import Bandwidth

SHORT = ["--threads", 1, "--measure", "steps=3,prompt=5,rounds=1,starts=0"]


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "bandwidth", lambda threads: Bandwidth(threads, 2e9, "a way", {"a way": 2e9}))
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1, prefill=True)
    return tmp_path / "graph.onnx"


def test_bench_table(graph: Path, capsys: Output) -> None:
    out, err = run(capsys, "bench", graph, graph, *SHORT)
    head, first, second, _, limit = out.splitlines()
    assert head.split("  ")[0] == "graph"
    assert first.split()[0] == second.split()[0] == str(graph)
    assert first.split()[3] == "1.00"
    assert (
        limit == "the limit assumes main memory at 2.0 GB/s, read by a way; a model that fits the cache can be faster"
    )
    assert "turn 2 of 2" in err


def test_json_object(graph: Path, capsys: Output) -> None:
    out, _ = run(capsys, "bench", graph, "--measure", "steps=3,prompt=5,rounds=1,starts=1", "--json")
    found = json.loads(out)
    assert out.count("\n") == 1
    [figures] = found["graphs"]
    assert figures["milliseconds"]["count"] == 3
    assert figures["distance"] == pytest.approx(figures["milliseconds"]["median"] / figures["limit"])
    assert figures["start"]["count"] == 1
    assert found["config"]["prompt"] == 5
    assert {"cpu", "torch", "onnxruntime"} <= found["machine"].keys()


@pytest.mark.slow
def test_tune(graph: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2r_export.providers.tune.LEAST_GAIN", 100.0)  # no setting gains that much
    out, _ = run(capsys, "bench", graph, *SHORT, "--tune")
    head, *rows, _, take = out.splitlines()
    assert head.split("  ")[0] == "setting"
    assert [row.split("  ")[0] for row in rows[:3]] == ["the runtime's own", "the same again", "threads 1"]
    assert take == "fastest: the runtime's own: Decoder(GRAPH)"
    out, _ = run(capsys, "bench", graph, *SHORT, "--tune", "--json")
    found = json.loads(out)
    assert (found["best"], found["tried"][2]["setting"]["threads"]) == ({}, 1)
    assert found["tried"][0]["milliseconds"]["count"] == 3


def test_bench_options_reach_config(graph: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[BenchConfig] = []
    real = module.bench

    def kept(graphs: list[Path], config: BenchConfig, say: object) -> object:
        configs.append(config)
        return real(graphs, BenchConfig(steps=1, warmup=0, prompt=1, rounds=1, starts=0))

    monkeypatch.setattr(module, "bench", kept)
    options = ["--provider", "openvino+cpu:a=b"]
    run(capsys, "bench", graph, *SHORT, *options)
    run(capsys, "bench", graph)
    assert configs == [
        BenchConfig(
            steps=3,
            prompt=5,
            rounds=1,
            starts=0,
            threads=1,
            provider="openvino",
            provider_options={"a": "b"},
            allow_fallback=True,
        ),
        BenchConfig(),
    ]


@pytest.fixture
def translator(tmp_path: Path) -> Path:
    return translators.save(tmp_path / "t", 1, tokenizer=letter_tokenizer(), source_tokenizer=letter_tokenizer("abcde"))


def test_translators_on_sentences(translator: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "lines.txt").write_text("bad\n\ncab\n")
    options = ["--sentences", tmp_path / "lines.txt", "--threads", 1, "--measure"]
    out, err = run(capsys, "bench", translator, translator, *options, "rounds=1,starts=0")
    head, first, second = out.splitlines()
    assert head.split("  ")[0] == "graph"
    assert first.split()[0] == second.split()[0] == str(translator)
    assert "turn 2 of 2" in err
    out, _ = run(capsys, "bench", translator, *options, "rounds=1,starts=0,beam=2,batch=2", "--json")
    found = json.loads(out)
    assert (found["count"], found["config"]["beam"], found["config"]["batch"]) == (2, 2, 2)
    assert found["graphs"][0]["tokens"] > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "expected --sentences for a translator; received none; name a file with --sentences"),
        (["--measure", "beam=2"], "expected --sentences with --measure beam; received none"),
        (["--sentences", "l.txt", "--measure", "prompt=2"], "one of --sentences and --measure prompt; received both"),
        (["--sentences", "lines.txt", "--tune"], "expected one of --sentences and --tune; received both"),
        (["--sentences", "none.txt"], "none.txt"),
    ],
)
def test_options_of_the_other_kind(options: list[object], message: str, translator: Path, capsys: Output) -> None:
    _, err = run(capsys, "bench", translator, *options, code=2)
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing.onnx"], "nothing.onnx, which does not exist"),
        ([], "expected GRAPH…; received none; see `t2r bench --help`"),
        ([__file__, "--measure", "rounds=0"], "expected rounds of --measure to be an integer from 1 to"),
        ([__file__, "--measure", "steps=x"], "expected steps of --measure to be an integer from 1 to"),
        (["nothing.onnx", "--provider", "toaster"], "expected a provider of: cpu"),
        ([__file__, __file__, "--tune"], "expected one GRAPH for --tune; received 2; tune one graph at a time"),
    ],
)
def test_invalid_arguments(arguments: list[str], message: str, capsys: Output) -> None:
    _, err = run(capsys, "bench", *arguments, code=2)
    assert message in err.splitlines()[-1]

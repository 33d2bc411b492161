"""`t2r bench` from the command line: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small
from cli_models import Output, run
from t2r_export.config.bench import BenchConfig
from t2r_export.providers import bench as module

SHORT = ["--threads", 1, "--measure", "steps=3,prompt=5,rounds=1,starts=0"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1, prefill=True)
    return tmp_path / "graph.onnx"


def test_bench_table(graph: Path, capsys: Output) -> None:
    out, err = run(capsys, "bench", graph, graph, *SHORT)
    head, first, second = out.splitlines()
    assert head.split("  ")[0] == "graph"
    assert first.split()[0] == second.split()[0] == str(graph)
    assert first.split()[3] == "1.00"
    assert "turn 2 of 2" in err


def test_json_object(graph: Path, capsys: Output) -> None:
    out, _ = run(capsys, "bench", graph, "--measure", "steps=3,prompt=5,rounds=1,starts=1", "--json")
    found = json.loads(out)
    assert out.count("\n") == 1
    [figures] = found["graphs"]
    assert figures["milliseconds"]["count"] == 3
    assert figures["start"]["count"] == 1
    assert found["config"]["prompt"] == 5
    assert {"cpu", "torch", "onnxruntime"} <= found["machine"].keys()


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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing.onnx"], "nothing.onnx, which does not exist"),
        ([], "expected GRAPH…; received none; see `t2r bench --help`"),
        ([__file__, "--measure", "rounds=0"], "expected rounds of --measure to be an integer from 1 to"),
        ([__file__, "--measure", "steps=x"], "expected steps of --measure to be an integer from 1 to"),
        (["nothing.onnx", "--provider", "toaster"], "expected a provider of: cpu"),
        ([__file__, "--measure", "beam=2"], "expected options of --measure (rounds, starts, steps, prompt)"),
    ],
)
def test_invalid_arguments(arguments: list[str], message: str, capsys: Output) -> None:
    _, err = run(capsys, "bench", *arguments, code=2)
    assert message in err.splitlines()[-1]

"""Every kind of graph is its eager model on the provider at hand; the proof protocol is t2r_export.verify."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from t2r_export import checkpoint
from t2r_export.config import Guard, LinearConfig, ModelConfig, RotaryConfig, SoftmaxConfig
from t2r_export.convert import convert
from t2r_export.export import ExportConfig, export
from t2r_export.model import Transformer
from t2r_export.verify import Report, verify
from t2r_runtime import Decoder

LINEAR = LinearConfig(feature_size=5)
GPT2 = ModelConfig(
    vocab_size=23, width=12, heads=3, kv_heads=3, head_size=4, ffn_size=20, layers=(LINEAR, LINEAR), max_positions=64
)
LLAMA = dataclasses.replace(
    GPT2,
    heads=6,
    norm="rms",
    activation="silu",
    gated_ffn=True,
    position="rotary",
    max_positions=None,
    rotary=RotaryConfig(),
    tied_head=False,
    qkv_bias=False,
    output_bias=False,
    ffn_bias=False,
)
MODELS = {
    "gpt2": GPT2,
    "shared": dataclasses.replace(
        GPT2, layers=(LinearConfig(5, shared_features=True, query_scale=0.5, guard=Guard("add", 1e-3)),) * 2
    ),
    "sinusoidal": dataclasses.replace(GPT2, position="sinusoidal", max_positions=None, activation="relu"),
    "no_positions": dataclasses.replace(GPT2, position="none", max_positions=None, activation="gelu"),
    "llama": LLAMA,
    "llama_dropped": dataclasses.replace(LLAMA, layers=(LinearConfig(5, positions="drop"),) * 2),
    "llama3_scaling": dataclasses.replace(LLAMA, rotary=RotaryConfig(5e5, "llama3", 8.0, 1.0, 4.0, 32)),
    "hybrid": dataclasses.replace(LLAMA, layers=(LINEAR, SoftmaxConfig(), LINEAR)),
    "teacher": dataclasses.replace(GPT2, layers=(SoftmaxConfig(),) * 3),
}
GRAPHS = {"layers": ExportConfig(), "packed": ExportConfig(state_layout="packed"), "batch_3": ExportConfig(batch=3)}


def saved(config: ModelConfig, path: Path, seed: int = 0) -> checkpoint.Checkpoint:
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # biases too: what is zero cannot show that it was forgotten
    checkpoint.save(path, model, None, {})
    return checkpoint.load(path)


def outcome(report: Report) -> str:
    return "\n".join(
        [f"{c.name}: {c.worst:.1e} of {c.tolerance:.0e}" for c in report.checks]
        + [f"first other greedy token: {report.first_greedy_difference}"]
    )


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_graph_is_the_model(name: str, graph: str, provider: str, tmp_path: Path) -> None:
    loaded = saved(MODELS[name], tmp_path / "model.pt")
    export(loaded, tmp_path / "model.onnx", GRAPHS[graph])
    report = verify(loaded, tmp_path / "model.onnx", provider, steps=256)
    assert report.passed, outcome(report)
    assert report.same_checkpoint
    assert len(report.checks) >= 4


def test_positions_past_the_end_repeat_the_last(provider: str, tmp_path: Path) -> None:
    loaded = saved(GPT2, tmp_path / "model.pt")
    export(loaded, tmp_path / "model.onnx", ExportConfig(past_end="clamp"))
    report = verify(loaded, tmp_path / "model.onnx", provider, steps=256)  # in one run of four times its positions
    assert report.passed, outcome(report)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_another_model_does_not_pass(name: str, provider: str, tmp_path: Path) -> None:
    export(saved(MODELS[name], tmp_path / "model.pt"), tmp_path / "model.onnx")
    report = verify(saved(MODELS[name], tmp_path / "other.pt", seed=1), tmp_path / "model.onnx", provider, steps=3)
    assert not report.passed
    assert not report.same_checkpoint


def test_stories_teacher_tells_its_story(data: Path, provider: str, tmp_path: Path) -> None:
    folder = data / "checkpoints" / "stories260K"
    loaded = checkpoint.load(folder)
    export(loaded, tmp_path / "teacher.onnx")
    bos, *expected = json.loads((folder / "expected_greedy_ids.json").read_text())["greedy_ids"]
    decoder = Decoder(tmp_path / "teacher.onnx", provider)
    assert decoder.generate([bos], len(expected), temperature=0, stop_tokens=()) == expected


def test_stories_as_t2r(data: Path, provider: str, tmp_path: Path) -> None:
    loaded = checkpoint.load(data / "checkpoints" / "stories260K")
    checkpoint.save(tmp_path / "t2r.pt", convert(loaded.model, 16), loaded.tokenizer, {})
    student = checkpoint.load(tmp_path / "t2r.pt")
    export(student, tmp_path / "t2r.onnx")
    report = verify(student, tmp_path / "t2r.onnx", provider, steps=1000)
    assert report.passed, outcome(report)

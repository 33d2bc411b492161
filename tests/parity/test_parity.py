"""Every kind of graph is its eager model on the provider at hand; the proof protocol is t2r_export.verify."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import margins
from parity.setups import GRAPHS, PROVIDER, SETUP, WANTED, opened
from t2r_export.checkpoints import checkpoint
from t2r_export.cli.reports import parity_text
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig, RotaryConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.proof.report import Report
from t2r_export.providers.matrix import calibration_text
from t2r_export.quantize import quantize
from t2r_export.verify import verify
from t2r_runtime import Sampling

LINEAR = LinearConfig(feature_size=5)
# OpenVINO 1.24.1 kills the process for a root mean square norm narrower than 16, which is one vector of AVX-512
GPT2 = ModelConfig(
    vocab_size=23, width=18, heads=3, kv_heads=3, head_size=4, ffn_size=20, layers=(LINEAR, LINEAR), max_positions=64
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


def fits(config: ModelConfig) -> bool:
    return WANTED.growing or not any(isinstance(layer, SoftmaxConfig) for layer in config.layers)


CELLS = [(name, graph) for name, config in MODELS.items() for graph in SETUP.graphs if fits(config)]
CELLS += [(name, graph) for name in ("gpt2", "llama") for graph in SETUP.few]


def saved(config: ModelConfig, path: Path, seed: int = 0) -> checkpoint.Checkpoint:
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # biases too: what is zero cannot show that it was forgotten
    checkpoint.save(path, model, None, {})
    return checkpoint.load(path)


def verified(loaded: checkpoint.Checkpoint, path: Path, steps: int = 256) -> Report:
    report = margins.noted(verify(loaded, path, PROVIDER, steps, decoder=opened(path), rounding=bool(margins.FILE)))
    print(parity_text(report))
    return report


@pytest.mark.parametrize("name, graph", CELLS)
def test_graph_is_the_model(name: str, graph: str, tmp_path: Path) -> None:
    loaded = saved(MODELS[name], tmp_path / "model.pt")
    export(loaded, tmp_path / "model.onnx", GRAPHS[graph])
    report = verified(loaded, tmp_path / "model.onnx")
    assert report.passed, parity_text(report)
    assert report.same_checkpoint
    assert len(report.checks) >= 4


def test_positions_past_the_end_repeat_the_last(tmp_path: Path) -> None:
    loaded = saved(GPT2, tmp_path / "model.pt")
    export(loaded, tmp_path / "model.onnx", dataclasses.replace(WANTED.config, past_end="clamp"))
    report = verified(loaded, tmp_path / "model.onnx")  # in one run of four times its positions
    assert report.passed, parity_text(report)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_another_model_does_not_pass(name: str, tmp_path: Path) -> None:
    export(saved(MODELS[name], tmp_path / "model.pt"), tmp_path / "model.onnx", WANTED.config)
    report = verified(saved(MODELS[name], tmp_path / "other.pt", seed=1), tmp_path / "model.onnx", steps=3)
    assert not report.passed
    assert not report.same_checkpoint


if WANTED.growing:

    def test_stories_teacher_tells_its_story(data: Path, tmp_path: Path) -> None:
        folder = data / "checkpoints" / "stories260K"
        export(checkpoint.load(folder), tmp_path / "teacher.onnx", WANTED.config)
        bos, *expected = json.loads((folder / "expected_greedy_ids.json").read_text())["greedy_ids"]
        decoder = opened(tmp_path / "teacher.onnx")
        assert decoder.generate([bos], len(expected), Sampling(temperature=0, stop_tokens=())) == expected


@pytest.fixture(scope="session")
def storyteller() -> checkpoint.Checkpoint:
    return checkpoint.load(Path(__file__).parents[2] / "models" / "storyteller" / "model.pt")


def test_the_storyteller(storyteller: checkpoint.Checkpoint, tmp_path: Path) -> None:
    export(storyteller, tmp_path / "model.onnx", WANTED.config)
    report = verified(storyteller, tmp_path / "model.onnx")
    assert report.passed, parity_text(report)


if WANTED.schemes:

    @pytest.mark.parametrize("scheme", WANTED.schemes)
    def test_quantized(scheme: str, storyteller: checkpoint.Checkpoint, tmp_path: Path) -> None:
        export(storyteller, tmp_path / "model.onnx", WANTED.config)
        np.save(tmp_path / "sampled.npy", calibration_text(storyteller.model))
        calibrate = tmp_path / "sampled.npy" if SCHEMES[scheme].calibrated else None
        config = QuantizeConfig(
            scheme=scheme, calibrate=calibrate, activation_bits=WANTED.activation_bits if calibrate else 8
        )
        quantize(tmp_path / "model.onnx", tmp_path / "small.onnx", config)
        report = verified(storyteller, tmp_path / "small.onnx")
        assert report.quantization == scheme
        assert report.passed, parity_text(report)


def test_stories_as_t2r(data: Path, tmp_path: Path) -> None:
    loaded = checkpoint.load(data / "checkpoints" / "stories260K")
    checkpoint.save(tmp_path / "t2r.pt", convert(loaded.model, LinearConfig(16)), loaded.tokenizer, {})
    student = checkpoint.load(tmp_path / "t2r.pt")
    export(student, tmp_path / "t2r.onnx", WANTED.config)
    report = verified(student, tmp_path / "t2r.onnx", steps=1000)
    assert report.passed, parity_text(report)

"""Every command on a plain LSTM or GRU, on averages, on Mamba-2, and on every feed-forward: none requires
attention."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import small
from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MoEConfig, ShortConvConfig
from t2r_export.config.uniform import Dense, NoFeedForward
from t2r_export.lab.config.average import AverageConfig
from t2r_export.lab.config.light_conv import LightConvConfig
from t2r_export.lab.config.product_key import ProductKeyConfig
from t2r_export.lab.config.recurrent import GRUConfig, LSTMConfig
from t2r_export.lab.config.s4d import S4DConfig
from t2r_export.model.initialize import initialize

PLAIN = dataclasses.replace(
    CONFIG.with_attention(heads=1, kv_heads=1, head_size=1), ffn_size=1, norm="none", residual=False, position="none"
)
MODELS: dict[str, ModelConfig] = {
    "lstm": dataclasses.replace(PLAIN, layers=(LSTMConfig(),) * 2, feed_forwards=(NoFeedForward(),) * 2),
    "gru": dataclasses.replace(PLAIN, layers=(GRUConfig(),) * 2, feed_forwards=(NoFeedForward(),) * 2),
    "average": dataclasses.replace(CONFIG, layers=(AverageConfig(), AverageConfig(24)), attention=None),
    "mamba2": dataclasses.replace(
        CONFIG, layers=(small.MAMBA2,) * 2, attention=None, feed_forwards=(NoFeedForward(), Dense())
    ),
    "gated_delta": dataclasses.replace(CONFIG, layers=(small.GATED_DELTA,) * 2, attention=None),
    "short_conv": dataclasses.replace(CONFIG, layers=(ShortConvConfig(), ShortConvConfig(4, True)), attention=None),
    "state spaces, twice": dataclasses.replace(
        CONFIG,
        layers=(small.MAMBA, S4DConfig(state_size=4), LightConvConfig(size=12, heads=3, taps=3, dynamic=True)),
        attention=None,
        rezero=True,
        rk2=True,
    ),
    "feed-forwards": dataclasses.replace(
        CONFIG,
        layers=(LinearConfig(5), LinearConfig(5), LinearConfig(5, memory=4)),
        feed_forwards=(
            MoEConfig(experts=3, size=7, balance=0.01),
            ProductKeyConfig(keys=6, query_size=8, heads=2, top=3),
            NoFeedForward(),
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_command(name: str, tmp_path: Path, capsys: Output) -> None:
    start, tuned, graph = (tmp_path / file for file in ("start.pt", "tuned.pt", "g.onnx"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat. the dog sat on the cat.\n" * 20)
    checkpoint.save(start, initialize(MODELS[name].build(), 0), letter_tokenizer(), {})
    options = ["--stages", "task", "--steps", 3, "--length", 16, "--batch", 2, "--device", "cpu", "--json"]
    trained = json.loads(run(capsys, "finetune", start, tuned, "--data", tmp_path / "text.txt", *options)[0])
    assert trained["student"]["nats"] > 0
    run(capsys, "export", tuned, graph)
    assert json.loads(run(capsys, "verify", tuned, graph, "--steps", 40, "--json")[0])["passed"]
    for path in (tuned, graph):
        assert json.loads(run(capsys, "inspect", path, "--json")[0])["memory"] == "constant"
    for scheme in ("w8", "int8"):
        run(capsys, "quantize", graph, tmp_path / f"{scheme}.onnx", "--scheme", scheme)
    for path in (graph, tmp_path / "w8.onnx", tmp_path / "int8.onnx"):
        written = run(capsys, "generate", path, "--prompt", "the cat", "--max-tokens", 5, "--temperature", 0)[0]
        assert written.strip("\n") and set(written) <= set(LETTERS) | {"\n"}


@pytest.mark.parametrize("mixer, options", [("lstm", ""), ("average", ":ffn_size=9")])
def test_convert_to_each_mixer(mixer: str, options: str, tmp_path: Path, capsys: Output) -> None:
    checkpoint.save(tmp_path / "m.pt", initialize(CONFIG.build(), 0), letter_tokenizer(), {})
    said = run(capsys, "convert", tmp_path / "m.pt", tmp_path / "c.pt", "--mixer", mixer + options, "--layers", 1)[0]
    assert said.endswith("; untrained: train it with t2r finetune\n")  # even without more parameters
    assert [mixer.kind for mixer in small.mixers(checkpoint.load(tmp_path / "c.pt").config)] == ["softmax", mixer]

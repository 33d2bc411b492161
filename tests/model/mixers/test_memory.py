"""Persistent memory: the pairs read as if they were the first tokens of the text, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

import small
from model.mixers.alone import empty, random_mixer, text
from small import CONFIGS, GPT2, LLAMA, B, G, K, T, V
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert, provenance
from t2r_export.finetune import original
from t2r_export.model.mixers import build_mixer
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.recurrences import chunked
from t2r_export.model.ops import TORCH
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

N = 3
CASES: dict[str, tuple[ModelConfig, LinearConfig]] = {
    "relu": (GPT2, LinearConfig(K, memory=N)),
    "rotary": (LLAMA, LinearConfig(K, memory=N)),
    "no z": (GPT2, LinearConfig(K, normalizer="none", memory=N)),
    "rfa": (LLAMA, LinearConfig(6, feature_map="rfa", memory=N)),
    "hedgehog": (LLAMA, LinearConfig(6, feature_map="hedgehog", memory=N)),
    "shared": (dataclasses.replace(GPT2, kv_heads=small.H), LinearConfig(K, shared_features=True, memory=N)),
}
cases = pytest.mark.parametrize("case", CASES)


def mixer(case: str) -> tuple[LinearMixer, Tensor]:
    model, config = CASES[case]
    made = random_mixer(model, config)
    assert isinstance(made, LinearMixer)
    made.rotates = False  # a memory has no place to be turned by; the text is not turned here either
    return made, text(T)


@torch.no_grad()
@cases
def test_it_is_what_was_read_before_the_text(case: str) -> None:
    made, x = mixer(case)
    q, k, v = made.features(x, None)[:3]
    phi_k = made._maps[1]
    heads = made.kv_heads
    remembered = phi_k(made.memory.k[None], False).reshape(1, heads, N, -1).transpose(1, 2)  # (1, N, G, K)
    before = torch.cat([remembered.expand(B, -1, -1, -1), k], 1)
    values = torch.cat([made.memory.v.transpose(0, 1).expand(B, -1, -1, -1), v], 1)
    queries = torch.cat([torch.zeros(B, N, *q.shape[2:], dtype=q.dtype), q], 1)
    state = empty(made)
    o, *_ = chunked(queries, before, values, state["S"], state.get("z"), made.config.guard)
    expected = made._output(o[:, N:], TORCH).unflatten(0, (B, T))
    y, after = made(x, state, None)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    plain = chunked(q, k, v, state["S"], state.get("z"), made.config.guard)
    torch.testing.assert_close(after["S"], plain[1], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@cases
def test_steps_and_fold(case: str) -> None:
    made, x = mixer(case)
    y, after = made(x, empty(made), None)
    folded = made.fold()
    assert not any(name.endswith(("memory.k", "memory.v")) for name, _ in folded.named_parameters())
    assert folded.get_parameter("memory.sums").shape == (made.kv_heads, made.config.feature_size, V + 1)
    for form in (made, folded):
        state = empty(made)
        for t in range(T):
            out, state = form.step(x[:, t], state, None)
            torch.testing.assert_close(out, y[:, t], rtol=1e-9, atol=1e-9)
        small.assert_states(state, after, 1e-9)


def test_every_weight_learns() -> None:
    made, x = mixer("relu")
    made(x, empty(made), None)[0].square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.abs().sum() > 0), name


def test_a_fresh_memory_says_nothing() -> None:
    made = build_mixer(GPT2, LinearConfig(K, normalizer="none", memory=N))
    without = build_mixer(GPT2, LinearConfig(K, normalizer="none"))
    without.load_state_dict({n: w for n, w in made.state_dict().items() if not n.startswith("memory")})
    x = torch.randn(B, T, GPT2.width, generator=torch.Generator().manual_seed(0))
    state = {"S": torch.zeros(B, G, K, V)}
    torch.testing.assert_close(made(x, state, None)[0], without(x, state, None)[0])


def test_states_start_at_zero_and_the_graph_holds_the_memory(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", "memory")
    assert all(spec.initial == 0 for spec in report.signature.states)
    assert [layer.get("memory") for layer in report.signature.layers] == [4, 3]
    assert "memory" not in small.model("none").config.layers[0].to_dict()


def test_the_teacher_of_a_model_with_a_memory_is_not_guessed() -> None:
    config = dataclasses.replace(CONFIGS["none"], layers=(small.SOFTMAX,))
    converted = convert(small.model(config), LinearConfig(K, memory=N))
    assert isinstance(converted, Transformer)
    source = small.checkpoint(config)
    checkpoint = dataclasses.replace(source, config=converted.config, model=converted, provenance=provenance(source))
    assert original(checkpoint).config.layers == config.layers  # its softmax model had none, so there is no doubt


def test_it_is_refused_where_it_is_no_number() -> None:
    with pytest.raises(UserError, match="expected memory to be an integer from 0 to 1048576; received -1"):
        LinearConfig(K, memory=-1)

"""Persistent memory: its pairs are read as if they were the first tokens of the text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

import small
from model.mixers.alone import Alone, by_steps, empty, layer, random_mixer, text
from small import CONFIGS, GPT2, LLAMA, B, K, T, V
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert, provenance
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_export.training.inputs import original
from t2r_runtime.errors import UserError

N = 3
CASES: dict[str, tuple[ModelConfig, LinearConfig]] = {
    "relu": (GPT2, LinearConfig(K, memory=N)),
    "rotary": (LLAMA, LinearConfig(K, memory=N)),
    "dropped": (LLAMA, LinearConfig(K, positions="drop", memory=N)),
    "no z": (GPT2, LinearConfig(K, normalizer="none", memory=N)),
    "rfa": (LLAMA, LinearConfig(6, feature_map="rfa", positions="drop", memory=N)),
    "hedgehog": (LLAMA, LinearConfig(6, feature_map="hedgehog", positions="drop", memory=N)),
    "shared": (GPT2.with_attention(kv_heads=small.H), LinearConfig(K, shared_features=True, memory=N)),
}
START = [3, 11]  # tokens that each text has read before
cases = pytest.mark.parametrize("case", CASES)


def mixer(case: str) -> tuple[Alone, Tensor]:
    made = random_mixer(*CASES[case])
    assert isinstance(made.inner, LinearMixer)
    return made, text(T)


@torch.no_grad()
@cases
def test_it_is_what_was_read_before_the_text(case: str) -> None:
    """A memory has no position, so that its keys are not rotated."""
    made, x = mixer(case)
    heads, ops = made.heads(x, START), TorchOps(N + T)
    q, k, *_ = made.features(heads, {}, ops)
    remembered = made.maps.of_keys.of(made.memory.k[None], False, ops)  # (1, G, N, K)
    before, values = (
        torch.cat([first.expand(B, -1, -1, -1), rest], 2)
        for first, rest in ((remembered, k), (made.memory.v[None], heads.v))
    )
    queries = torch.cat([torch.zeros(B, q.shape[1], N, q.shape[3], dtype=q.dtype), q], 2)
    state, guard = empty(made), made.config.guard
    o, sums, _, _ = ops.linear_attention(queries, before, values, state["S"], state.get("z"))
    o = o if sums is None else ops.divide(o, sums, guard)
    expected = made.output(o[:, :, N:].transpose(1, 2))
    y, after = made(x, state, START)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    _, _, S, z = TorchOps(T).linear_attention(q, k, heads.v, state["S"], state.get("z"))
    torch.testing.assert_close(after["S"], S, rtol=1e-9, atol=1e-9)
    if z is not None:
        torch.testing.assert_close(after["z"], z, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@cases
def test_steps_and_fold(case: str) -> None:
    made, x = mixer(case)
    y, after = made(x, empty(made), START)
    forms = [made]
    if case == "rotary":
        assert made.why_not_foldable() is not None
    else:
        folded = made.fold()
        assert not any(name.endswith(("memory.k", "memory.v")) for name, _ in folded.named_parameters())
        sums = folded.get_parameter("inner.memory.sums")
        assert sums.shape == (made.model.attention.kv_heads, made.config.feature_size, V + 1)
        forms.append(folded)
    for form in forms:
        stepped, end = by_steps(form, x, empty(form), START)
        torch.testing.assert_close(stepped, y, rtol=1e-9, atol=1e-9)
        small.assert_states(end, after, 1e-9)


def test_every_weight_learns() -> None:
    made, x = mixer("relu")
    small.assert_learns(made, made(x, empty(made))[0])


def test_a_fresh_memory_says_nothing() -> None:
    configs = (LinearConfig(K, normalizer="none", memory=n) for n in (N, 0))
    made, without = (Alone(GPT2, layer(GPT2, config).double()) for config in configs)
    without.load_state_dict({n: w for n, w in made.state_dict().items() if ".memory." not in n})
    x, state = text(T), empty(made)
    torch.testing.assert_close(made(x, state)[0], without(x, state)[0])


def test_memory_is_graph_weight(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", "memory")
    assert all(spec.initial == 0 for spec in report.signature.states)
    assert [small.described(layer).get("memory") for layer in report.signature.layers] == [4, 3]


def test_memory_requires_explicit_teacher() -> None:
    config = dataclasses.replace(CONFIGS["none"], layers=(small.SOFTMAX,))
    converted = convert(small.model(config), LinearConfig(K, memory=N))
    assert isinstance(converted, Transformer)
    source = small.checkpoint(config)
    checkpoint = dataclasses.replace(source, config=converted.config, model=converted, provenance=provenance(source))
    # its softmax model had no memory, so that the result is unambiguous
    assert small.mixers(original(checkpoint).config) == list(config.layers)


def test_it_is_refused_where_it_is_no_number() -> None:
    with pytest.raises(UserError, match="expected memory to be an integer from 0 to 1048576; received -1"):
        LinearConfig(K, memory=-1)

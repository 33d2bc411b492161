"""Average layers against their definition, one token after the other (Zhang et al. 2018, eq. 1 and 5 to 7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, buffers, by_steps, random_mixer, text
from small import GPT2, WIDTH, B, T, assert_learns
from t2r_export.config.plain import to_plain
from t2r_export.config.uniform import mixer_from_dict
from t2r_export.lab.average import Average
from t2r_export.lab.config.average import AverageConfig
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

START = [3, 8]  # tokens that each row has read
sizes = pytest.mark.parametrize("ffn_size", [0, 13])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def setting(ffn_size: int, length: int = T) -> tuple[Alone, Tensor, State[Tensor]]:
    made = random_mixer(GPT2, AverageConfig(ffn_size))
    assert isinstance(made.layer, Average)
    return made, text(length), buffers(made, B)


def by_definition(made: Alone, x: Tensor, total: Tensor, start: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """y (B, T, D) and the sum after the last token (B, D), one row and one token at a time."""
    weights = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    out, sums = np.empty(x.shape), total.numpy().copy()
    for row, before in enumerate(start):
        for t, token in enumerate(x[row].numpy()):
            sums[row] += token
            g = sums[row] / (before + t + 1)
            if "up.weight" in weights:
                hidden = np.maximum(weights["up.weight"] @ g + weights["up.bias"], 0)
                g = weights["down.weight"] @ hidden + weights["down.bias"]
            gates = sigmoid(weights["gates.weight"] @ np.concatenate([token, g]) + weights["gates.bias"])
            out[row, t] = gates[:WIDTH] * token + gates[WIDTH:] * g
    return out, sums


@torch.no_grad()
@sizes
@pytest.mark.parametrize("length", [1, T, 150])  # several chunks
def test_sequence_and_step_are_the_definition(ffn_size: int, length: int) -> None:
    made, x, state = setting(ffn_size, length)
    expected, end = by_definition(made, x, state["sum"], START)
    for y, after in (made(x, state, START), by_steps(made, x, state, START)):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-10)
        assert after.keys() == {"sum"}
        np.testing.assert_allclose(after["sum"].numpy(), end, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_average_without_ffn_is_mean() -> None:
    made, x, state = setting(0)
    made.layer.gates.weight.zero_()
    made.layer.gates.bias.copy_(torch.tensor([-40.0, 40.0]).repeat_interleave(WIDTH))
    y, _ = made(x, {"sum": torch.zeros_like(state["sum"])})
    means = np.stack([x[:, : t + 1].mean(1).numpy() for t in range(T)], 1)
    np.testing.assert_allclose(y.numpy(), means, rtol=1e-10, atol=1e-10)


@sizes
def test_states_stay_float32_under_autocast(ffn_size: int) -> None:
    made, x, state = setting(ffn_size)
    state = {name: value.float() for name, value in state.items()}
    single = Alone(made.model, made.layer.float())
    expected, _ = single(x.float(), state, START)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, after = single(x.bfloat16(), state, START)
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    assert after["sum"].dtype == torch.float32


@sizes
def test_every_weight_learns(ffn_size: int) -> None:
    made, x, state = setting(ffn_size)
    assert_learns(made, made(x, state, START)[0])


def test_state_spec_and_fold() -> None:
    made, *_ = setting(13)
    assert [(s.name, s.dtype, s.shape, s.initial) for s in made.state_spec()] == [("sum", "float32", ("B", WIDTH), 0.0)]
    assert made.why_not_foldable() == "average layers have no feature map to fold"


def test_config() -> None:
    assert mixer_from_dict({"kind": "average"}) == AverageConfig(0)
    assert mixer_from_dict(to_plain(AverageConfig(5))) == AverageConfig(5)
    with pytest.raises(UserError, match="expected ffn_size to be an integer from 0 to"):
        AverageConfig(-1)

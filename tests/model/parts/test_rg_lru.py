"""Griffin's recurrent block against its formulas, one token after another, from the first token and a later one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, by_steps, random_mixer
from small import GPT2, WIDTH, B, T, assert_learns
from t2r_export.config.parts import RGLRUConfig
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

CONFIG = RGLRUConfig(size=12, blocks=3, taps=3, activation="relu")
START = [0, 5]  # tokens read before


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    w = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    s, past, out = state["s"].numpy().copy(), state["conv"][:, 0].numpy().copy(), np.zeros((B, x.shape[1], WIDTH))
    for b in range(B):
        rows = list(past[b])
        for t in range(x.shape[1]):
            row = x[b, t].numpy()
            rows.append(w["x.weight"] @ row + w["x.bias"])
            u = sum(w["conv.weight"][-1 - j] * rows[-1 - j] for j in range(CONFIG.taps)) + w["conv.bias"]
            entering, staying = (
                1
                / (
                    1
                    + np.exp(
                        -np.concatenate([u[4 * n : 4 * n + 4] @ w[f"{gate}_weight"][n] for n in range(3)])
                        - w[f"{gate}_bias"].flatten()
                    )
                )
                for gate in ("input", "decay")
            )
            a = np.exp(-8 * staying * np.log1p(np.exp(w["rate"])))
            share = 1.0 if START[b] + t == 0 else np.sqrt(1 - a**2)
            s[b] = a * s[b] + share * entering * u
            out[b, t] = w["o.weight"] @ (np.maximum(w["y.weight"] @ row + w["y.bias"], 0) * s[b]) + w["o.bias"]
        past[b] = rows[1 - CONFIG.taps :]
    return out, {"s": s, "conv": past[:, None]}


@torch.no_grad()
def test_sequence_and_step_are_the_definition() -> None:
    made = random_mixer(GPT2, CONFIG)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, WIDTH, generator=generator, dtype=torch.float64)
    shapes = {spec.name: spec.dims(B) for spec in made.state_spec()}
    state = {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
    expected, end = by_definition(made, x, state)
    for y, after in (made(x, state, START), by_steps(made, x, state, START)):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-9, atol=1e-9)
        assert after.keys() == end.keys()
        for name, value in after.items():
            np.testing.assert_allclose(value.numpy(), end[name], rtol=1e-9, atol=1e-9)


def test_every_weight_learns() -> None:
    made = random_mixer(GPT2, CONFIG)
    state = {spec.name: torch.ones(spec.dims(B), dtype=torch.float64) for spec in made.state_spec()}
    assert_learns(made, made(torch.randn(B, T, WIDTH, dtype=torch.float64), state)[0])


@pytest.mark.parametrize(
    "changes, message",
    [({"blocks": 5}, "blocks to divide size=12; received 5"), ({"taps": 1}, "taps to be an integer from 2 to 64")],
)
def test_impossible_sizes_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RGLRUConfig(**{"size": 12, "blocks": 3, **changes})

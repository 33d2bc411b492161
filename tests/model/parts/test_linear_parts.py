"""Parts that are linear attention with a norm per head: states, training, refusals.

tests/checkpoints/importers/test_fla.py compares them with definitions in NumPy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import small
from small import DELTA_NET, GATED_DELTA, GLA, KDA, LLAMA, RETENTION, WIDTH, G, H
from t2r_export.config.parts import LinearPartConfig
from t2r_export.config.positions import AlibiConfig, RotaryConfig
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError

FORMS: dict[str, LinearPartConfig] = {
    "delta_net": DELTA_NET,
    "delta_net, plain": dataclasses.replace(DELTA_NET, gate="none", taps=0),
    "gated_delta, sigmoid": dataclasses.replace(GATED_DELTA, gate="sigmoid"),
    "kda": KDA,
    "kda, no gate": dataclasses.replace(KDA, gate="none"),
    "gla": GLA,
    "gla, convolved": dataclasses.replace(GLA, taps=3),
    "retention": RETENTION,
    "retention, no positions": dataclasses.replace(RETENTION, positions=None),
}
forms = pytest.mark.parametrize("name", FORMS)


def model(name: str) -> Any:
    return small.with_layers(small.PLAIN, FORMS[name], FORMS[name])


@forms
@torch.no_grad()
def test_a_text_is_its_steps(name: str) -> None:
    made, ids = small.model(model(name)).double(), small.ids(length=67)
    start = small.in_precision_of(made, small.states(made))
    whole, after = made.prefill(ids, start)
    stepped, end = small.by_steps(made, ids, start)
    torch.testing.assert_close(whole[:, -1], stepped[:, -1], rtol=1e-6, atol=1e-6)
    small.assert_states(after, end, 1e-6)


@forms
def test_every_weight_learns(name: str) -> None:
    made = initialize(small.built(model(name)), 0)
    small.assert_learns(made, made(small.ids()))


@forms
def test_states(name: str) -> None:
    config, made = FORMS[name], small.model(model(name))
    shapes = {spec.name: spec.shape for spec in made.state_spec()}
    expected: dict[str, tuple[Any, ...]] = {}
    for layer in (0, 1):
        K, V = config.key_size, config.value_size
        expected[f"S.{layer}"] = ("B", H, K, V)
        expected |= {f"conv.{layer}": ("B", 1, 2, 2 * G * K + H * V)} if config.taps else {}
    assert shapes == expected | ({"position": ("B",)} if name == "retention" else {})


def test_retention_forgets_at_fixed_rates_and_rotates() -> None:
    made = small.model("retention").blocks[1].parts[0]
    torch.testing.assert_close(made.log_gate.exp().flatten(), 1 - 2.0 ** -(5.0 + torch.arange(H)))
    assert "log_gate" not in dict(made.state_dict())
    assert [rotation[1] for rotation in RETENTION.rotations()] == [16]
    partly = dataclasses.replace(RETENTION, positions=RotaryConfig(size=4))
    assert [rotation[1] for rotation in partly.rotations()] == [4]


@pytest.mark.parametrize(
    "part, changes, message",
    [
        (KDA, {"taps": 1}, "taps to be 0, or at least 2; received 1"),
        (KDA, {"key_heads": 4}, "key_heads to divide heads=6; received 4"),
        (KDA, {"decay_rank": 0}, "decay_rank to be an integer from 1"),
        (GLA, {"gate": "relu"}, "gate to be one of silu, sigmoid, none; received 'relu'"),
        (GLA, {"decay_divisor": 0.0}, "decay_divisor to be a finite positive number"),
        (RETENTION, {"key_size": 15}, "an even head_size"),
        (RETENTION, {"positions": AlibiConfig()}, "rotary positions in retention, or none; received AlibiConfig"),
    ],
)
def test_impossible_sizes_are_refused(part: LinearPartConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(part, **changes)


def test_words() -> None:
    assert (
        KDA.summary() == "heads=6,key_heads=3,key_size=16,value_size=17,taps=3,norm_eps=0.001,decay_rank=7,gate_rank=8,"
        "gate_bias=true"
    )
    made = small.model(small.with_layers(LLAMA, GLA)).blocks[0].parts[0]
    assert made.why_not_foldable() == "gla layers have no feature map to fold"
    assert made.a1.weight.shape == (7, WIDTH)

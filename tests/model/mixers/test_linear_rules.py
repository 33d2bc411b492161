"""Linear attention with decays and update rules: every form against the NumPy definition, and how a layer starts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from model.mixers.alone import Alone, by_steps, layer, random_mixer
from small import GPT2, LLAMA, B, G, H, K, T, V, assert_learns
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.gates import OPEN, Control, Gates
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.ops import State
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

GUARD = Guard("add", 0.3)  # large: a wrong guard cannot hide
RULES: dict[str, LinearConfig] = {
    "gated": LinearConfig(K, update_rule="gated", gate="data", guard=GUARD),
    "fixed": LinearConfig(K, update_rule="gated", gate="fixed", guard=GUARD),
    "average": LinearConfig(K, update_rule="gated", gate="data", moving_average=True, guard=GUARD),
    "fixed_average": LinearConfig(K, update_rule="gated", gate="fixed", moving_average=True, guard=GUARD),
    "gated_norm": LinearConfig(K, update_rule="gated", gate="data", normalizer="group_norm"),
    "delta": LinearConfig(K, update_rule="delta", normalizer="none"),
    "gated_delta": LinearConfig(K, update_rule="gated_delta", gate="data", normalizer="rms_norm"),
    "fixed_delta": LinearConfig(K, update_rule="gated_delta", gate="fixed", normalizer="none"),
}
MODELS: dict[str, ModelConfig] = {"learned": GPT2, "rotary": LLAMA}
START = [3, 11]  # tokens that each text has read before
every = pytest.mark.parametrize("rule, model", [(rule, model) for rule in RULES for model in MODELS])


def mixer(rule: str, model: str, seed: int = 0) -> Alone:
    made = random_mixer(MODELS[model], RULES[rule], seed=seed)
    assert isinstance(made.inner, LinearMixer)
    return made


def inputs(made: Alone, length: int = T, seed: int = 1) -> tuple[Tensor, State[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, length, GPT2.width, generator=generator, dtype=torch.float64)
    state = {s.name: torch.rand(s.dims(B), generator=generator, dtype=torch.float64) + 0.5 for s in made.state_spec()}
    return x, state


def maps(made: Alone, x: Tensor, start: list[int] | None = None) -> list[np.ndarray]:
    """φ(q), φ(k) and v (B, T, heads, ·) of a layer with the same weights and the linear rule."""
    config = dataclasses.replace(made.config, update_rule="linear", gate="none", moving_average=False)
    plain = Alone(made.model, layer(made.model, config).double())
    plain.load_state_dict({name: w for name, w in made.state_dict().items() if ".gates." not in name})
    heads = plain.heads(x, start)
    q, k, _, control, *_ = plain.features(heads, {}, TorchOps(x.shape[1]))
    assert control == Control()
    return [part.transpose(1, 2).numpy() for part in (q, k, heads.v)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> list[np.ndarray]:
    """y, S and z, from φ(q), φ(k), v, the gates' weights, the output and reference alone."""
    config = made.config
    q, k, v = maps(made, x, START)
    log_gate = beta = None
    logits = []
    if made.gates.rows:
        y = x.numpy() @ made.gates.weight.numpy().T + made.gates.offset.numpy()
        logits = [y[..., at : at + G] for at in range(0, made.gates.rows, G)]
    if config.gate == "data":
        log_gate = np.log(sigmoid(logits[0]))
    if config.gate == "fixed":
        log_gate = np.log(1 - 2.0 ** (-5 - np.arange(G))) * np.ones((*x.shape[:2], 1))
    if "delta" in config.update_rule:
        beta = sigmoid(logits[-1])
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + K * 1e-6) for a in (q, k))
    if config.moving_average:
        k = k * (1 - np.exp(log_gate))[..., None]
    o, S = reference.recurrence(q, k, v, state["S"].numpy(), log_gate, beta)
    if config.normalizer != "z":
        return [output(made, o), S]
    # z is the state of a value that is always 1
    sums, z = reference.recurrence(q, k, np.ones((*v.shape[:3], 1)), state["z"].numpy()[..., None], log_gate)
    return [output(made, o / (sums + GUARD.eps)), S, z[..., 0]]


def output(made: Alone, o: np.ndarray) -> np.ndarray:
    """y of o (B, T, H, V), its heads normalized if the config requires it."""
    if made.config.normalizer.endswith("norm"):
        weight, bias = made.norm.weight.numpy(), made.norm.bias
        for place in np.ndindex(*o.shape[:3]):
            o[place] = reference.head_norm(o[place], weight, None if bias is None else bias.numpy(), GPT2.norm_eps)
    return made.output(torch.from_numpy(o)).numpy()


@torch.no_grad()
@every
def test_sequence_and_step_are_the_definition(rule: str, model: str) -> None:
    made = mixer(rule, model)
    x, state = inputs(made)
    expected = by_definition(made, x, state)
    tolerance = 1e-6 if made.config.gate == "fixed" else 1e-10  # float32 constants
    y, end = made(x, state, START)
    stepped, last = by_steps(made, x, state, START)
    for outputs in ((y, *end.values()), (stepped, *last.values())):
        for received, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(received.numpy(), wanted, rtol=tolerance, atol=tolerance)
    for received, wanted in zip((stepped, *last.values()), (y, *end.values()), strict=True):
        torch.testing.assert_close(received, wanted, rtol=1e-10, atol=1e-10)


@settings(max_examples=16)
@given(st.sampled_from(list(RULES)), st.integers(1, 29))
def test_split_is_whole(rule: str, at: int) -> None:
    made = mixer(rule, "learned")
    x, state = inputs(made, length=30)
    with torch.no_grad():
        whole, end = made(x, state)
        first, state = made(x[:, :at], state)
        second, state = made(x[:, at:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, end, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("rule", RULES)
def test_folded_is_unfolded(rule: str) -> None:
    made = mixer(rule, "learned")
    x, state = inputs(made)
    assert made.why_not_foldable() is None
    folded = made.fold()
    assert isinstance(folded.inner, LinearMixer)
    assert folded.qkv.out_features == (H + G) * K + G * V + made.gates.rows
    assert not [name for name, _ in folded.gates.named_parameters()]
    pairs = (folded(x, state), made(x, state)), (folded.step(x[:, 0], state), made.step(x[:, 0], state))
    for received, expected in pairs:
        for value, wanted in zip(received, expected, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_every_weight_learns(rule: str) -> None:
    made = mixer(rule, "learned")
    x, state = inputs(made)
    assert_learns(made, made(x, state)[0])


def test_state_spec() -> None:
    shapes = {"S": ("B", G, K, V), "z": ("B", G, K)}
    for rule, config in RULES.items():
        spec = {s.name: s.shape for s in mixer(rule, "learned").state_spec()}
        assert spec == (shapes if config.normalizer == "z" else {"S": shapes["S"]})


@torch.no_grad()
def test_gated_layer_initially_near_ungated() -> None:
    torch.manual_seed(0)
    configs = LinearConfig(K), LinearConfig(K, update_rule="gated", gate="data")
    plain, gated = (Alone(GPT2, layer(GPT2, config).double()) for config in configs)
    gated.load_state_dict(plain.state_dict(), strict=False)
    x, state = inputs(plain, length=20)
    (y, after), (expected, after_expected) = gated(x, state), plain(x, state)
    assert 0 < (y - expected).abs().max() < 0.02 * expected.abs().max()
    kept = torch.sigmoid(torch.tensor(OPEN)).item() ** 20
    assert kept > 0.95
    assert torch.all(after["z"] >= kept * after_expected["z"] - 1e-9)


def test_fixed_decays_are_retnets() -> None:
    gates = Gates(7, 3, RULES["fixed"])
    assert not list(gates.parameters())
    assert not gates.state_dict()
    np.testing.assert_allclose(gates.log_gate.exp().flatten(), [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128], rtol=1e-7)


def test_a_gate_is_exact_where_it_is_nearly_open() -> None:
    """float32 numbers next to 1 are 6e-8 apart, so that 1 - sigmoid(12) = 6.1e-6 would be known to one part in 100."""
    gates = Gates(1, 1, RULES["average"])
    gates.offset.data.fill_(12.0)
    control = gates.control(gates.logits(torch.zeros(1, 1), TorchOps()), TorchOps())
    assert control.entering is not None and control.log_gate is not None
    left = 1 / (1 + np.exp(12.0))
    np.testing.assert_allclose(control.entering.item(), left, rtol=1e-6)
    np.testing.assert_allclose(-control.log_gate.item(), -np.log1p(-left), rtol=1e-6)


@torch.no_grad()
def test_a_moving_average_forgets_its_start() -> None:
    """Equal tokens: S becomes φ(k) vᵀ from any start (2103.02143, section 3.3)."""
    made = mixer("average", "learned")
    for weight in made.gates.parameters():  # g = 1/2
        weight.zero_()
    x, state = inputs(made, length=1)
    x = x.expand(B, 200, GPT2.width)
    _, after = made(x, state)
    _, k, v = maps(made, x)
    np.testing.assert_allclose(after["S"], k[:, 0, :, :, None] * v[:, 0, :, None, :], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"update_rule": "decay"},
            "expected update_rule to be one of linear, gated, delta, gated_delta; received 'decay'; did you "
            "mean delta?",
        ),
        (
            {"update_rule": "gated"},
            "expected a gate of fixed, data, pair for the update rule gated; received gate none; choose one of those",
        ),
        (
            {"gate": "fixed"},
            "expected a gate of none for the update rule linear; received gate fixed; choose one of those",
        ),
        (
            {"update_rule": "delta"},
            "expected a normalizer of none, group_norm, rms_norm for the update rule delta, which has no z; "
            "received normalizer z; choose one of those",
        ),
        (
            {"moving_average": True},
            "expected moving_average only with the update rule gated; received linear; leave moving_average out",
        ),
        (
            {"update_rule": "gated", "gate": "data", "memory": 2},
            "expected memory only with the update rule linear; received gated; leave memory out",
        ),
    ],
)
def test_invalid_combinations(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        LinearConfig(K, **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_rule_is_in_the_summary() -> None:
    assert "update_rule" not in LinearConfig(K).summary()
    assert "update_rule=gated,gate=data,moving_average=true" in RULES["average"].summary()
    assert "update_rule=delta" in RULES["delta"].summary()
    assert dataclasses.replace(GPT2, layers=(RULES["gated"], SoftmaxConfig())).layers[0].folded is False

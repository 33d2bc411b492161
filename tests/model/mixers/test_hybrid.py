"""A softmax window beside linear attention, against its definition in NumPy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
import small
from model.mixers.alone import Alone, buffers, by_steps, empty, layer, random_mixer, text
from small import GPT2, LLAMA, B, G, K, V
from t2r_export.config.mixers import Guard, HybridConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.describe import describe
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

MODELS = {"learned": GPT2, "rotary": LLAMA, "after": LLAMA}
GUARD = Guard("add", 0.3)  # large: a wrong guard cannot hide
merges = pytest.mark.parametrize("merge", HybridConfig.MERGES)
models = pytest.mark.parametrize("model", MODELS)
# update rule of the sums, number of sinks, which never enter them, and output gate
KINDS = {
    "linear": {},
    "sinks": {"sinks": 2},
    "data": {"update_rule": "gated", "gate": "data"},
    "fixed_sinks": {"update_rule": "gated", "gate": "fixed", "sinks": 1},
    "output_gate": {"output_gate": True},
}
POSITIONS: dict[str, Any] = {"learned": {}, "rotary": {}, "after": {"positions": "after", "rotary_size": 4}}
kinds = pytest.mark.parametrize("kind", KINDS)
MAPS = {"relu": K, "relu2": K, "elu": V, "hedgehog": 6, "favor": 5, "rfa": 4, "dpfp": 8}


def mixer(model: str, merge: str, window: int, feature_map: str = "relu", kind: str = "linear") -> Alone:
    config = HybridConfig(window, MAPS[feature_map], feature_map, merge, GUARD, **KINDS[kind], **POSITIONS[model])
    made = random_mixer(MODELS[model], config, scale=0.6)
    assert isinstance(made.inner, HybridMixer)
    return made


def rotated(x: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Rotate the first `size` elements of each vector of x (B, T, heads, d) by its place (T)."""
    frequencies, y = 10000.0 ** (-np.arange(0, size, 2) / size), x.copy()
    for b, t, h in np.ndindex(*x.shape[:3]):
        y[b, t, h, :size] = reference.turned(x[b, t, h, :size], places[t] * frequencies)
    return y


def by_definition(made: Alone, x: Tensor, alone: bool = False) -> Tensor:
    """`alone`: without the window once tokens have left it."""
    q, k, v = (layer(x).unflatten(-1, (-1, V)) for layer in (made.q, made.k, made.v))
    plain, after = (q, k), made.config.positions == "after"
    q, k = made.rotated(q), made.rotated(k)
    of_q, of_k = plain if after else (q, k)
    if made.wrap is not None:
        places = np.arange(x.shape[1]) % made.wrap
        of_q, of_k = (torch.from_numpy(rotated(heads.numpy(), places, V)) for heads in plain)
    maps = (made.maps.of_queries, of_q, True), (made.maps.of_keys, of_k, False)
    phi_q, phi_k = (phi.of(heads.transpose(1, 2), query, TorchOps()).transpose(1, 2) for phi, heads, query in maps)
    gate = made.config.merge != "sum"
    share = made.merge.sigmoid() if gate else made.merge.exp()
    if made.config.merge == "token":
        share = (x @ made.merge_weight.T + made.merge).sigmoid()
    if alone:
        share, gate = torch.zeros(()), True
    arrays = (a.numpy() for a in (q / np.sqrt(V), k, v, phi_q, phi_k))
    config, log_gate = made.config, None
    if config.gate == "data":
        log_gate = -np.log1p(np.exp(-(x.numpy() @ made.gates.weight.numpy().T + made.gates.offset.numpy())))
    if config.gate == "fixed":
        log_gate = np.log(1 - 2.0 ** (-5 - np.arange(G))) * np.ones((*x.shape[:2], 1))
    sink_q = turned_phi = None
    if after:
        places = np.minimum(np.arange(x.shape[1]), config.window + config.sinks - 1)
        sink_q = rotated(plain[0].numpy() / np.sqrt(V), places, V)
        turned_phi = tuple(rotated(phi.numpy(), np.arange(x.shape[1]), 4) for phi in (phi_q, phi_k))
    o = reference.merged(
        *arrays, config.window, share.numpy(), gate, config.guard, config.sinks, log_gate, sink_q, turned_phi
    )
    outputs = torch.from_numpy(o)
    if config.output_gate:
        logits = x @ made.output_gate.weight.T + made.output_gate.offset
        outputs = outputs * (2 * logits.sigmoid()).reshape(outputs.shape)
    return made.output(outputs)


@torch.no_grad()
@merges
@models
@kinds
@pytest.mark.parametrize("window, length", [(4, 24), (1, 7), (9, 26), (30, 12)])
def test_sequence_and_step_are_the_definition(model: str, merge: str, kind: str, window: int, length: int) -> None:
    made, x = mixer(model, merge, window, kind=kind), text(length)
    expected = by_definition(made, x)
    tolerance = {"after": 1e-5}.get(model, 1e-6 if made.config.gate == "fixed" else 1e-10)  # float32 constants
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
@merges
@kinds
@pytest.mark.parametrize("wrap", [1, 3, 8])
def test_positions_wrap_for_features_alone(wrap: int, merge: str, kind: str) -> None:
    """The window sees true distances across every wrap, and φ sees places modulo N."""
    made, x = mixer("rotary", merge, 4, kind=kind), text(26)
    plain = made(x, empty(made))[0]
    made.wrap = wrap
    expected = by_definition(made, x)
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)
    assert (plain - expected).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("feature_map", MAPS)
def test_every_feature_map(feature_map: str) -> None:
    made, x = mixer("rotary", "gate", 3, feature_map), text(11)
    y, after = made(x, empty(made))
    torch.testing.assert_close(y, by_definition(made, x), rtol=1e-10, atol=1e-10)
    stepped, end = by_steps(made, x, empty(made))
    torch.testing.assert_close(stepped, y, rtol=1e-10, atol=1e-10)
    small.assert_states(end, after, 1e-10)


@torch.no_grad()
@settings(max_examples=40)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(HybridConfig.MERGES),
    st.sampled_from(list(KINDS)),
    st.integers(1, 7),
    st.integers(2, 40),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.data(),
)
def test_every_form_is_one_function(
    model: str, merge: str, kind: str, window: int, length: int, start: list[int], data: st.DataObject
) -> None:
    """A sequence, any split of it and single steps agree, from random states."""
    made, x = mixer(model, merge, window, kind=kind), text(length, len(start))
    state, at = buffers(made, len(start)), data.draw(st.integers(1, length - 1))
    y, after = made(x, state, start)
    first, between = made(x[:, :at], state, start)
    second, end = made(x[:, at:], between, [n + at for n in start])
    stepped, last = by_steps(made, x, state, start)
    for received in (torch.cat([first, second], 1), stepped):
        torch.testing.assert_close(received, y, rtol=1e-10, atol=1e-10)
    for received in (end, last):
        assert list(received) == list(state)
        small.assert_states(received, after, 1e-10)


@torch.no_grad()
@merges
@models
@kinds
def test_equals_softmax_before_eviction(model: str, merge: str, kind: str) -> None:
    teacher = small.model(dataclasses.replace(MODELS[model], layers=(small.SOFTMAX,) * 2)).double()
    student, ids = convert(teacher, HybridConfig(9, K, merge=merge, **KINDS[kind])), small.ids(length=14)
    same = 9 + small.mixers(student.config)[0].sinks  # type: ignore[attr-defined, union-attr]
    torch.testing.assert_close(student(ids)[:, :same], teacher(ids)[:, :same], rtol=1e-10, atol=1e-10)
    assert (student(ids) - teacher(ids))[:, same:].abs().max() > 1e-4
    new = student.state_dict().keys() - teacher.state_dict().keys()
    parts = {name.split(".inner.")[1].removesuffix(".weight").removesuffix(".bias") for name in new}
    gates = {"data": {"gates", "gates.offset"}, "output_gate": {"output_gate", "output_gate.offset"}}.get(kind, set())
    of_token = {"merge_weight"} if merge == "token" else set()
    assert parts == {"maps.q", "maps.k", "merge"} | gates | of_token


@torch.no_grad()
def test_evicted_token_enters_sums() -> None:
    made, x = mixer("learned", "sum", 3), text(8)
    _, after = made(x, empty(made))
    k, v = (layer(x).view(B, 8, G, V).transpose(1, 2) for layer in (made.k, made.v))
    assert torch.equal(after["k"], k[:, :, -3:])
    features = made.maps.k.of(k[:, :, :5], False, TorchOps())
    torch.testing.assert_close(after["z"], features.sum(2))
    torch.testing.assert_close(after["S"], features.mT @ v[:, :, :5])


@torch.no_grad()
def test_sinks_never_enter_the_sums() -> None:
    made, x = mixer("learned", "sum", 3, kind="sinks"), text(8)
    _, after = made(x, empty(made))
    k, v = (layer(x).view(B, 8, G, V).transpose(1, 2) for layer in (made.k, made.v))
    assert torch.equal(after["sink_k"], k[:, :, :2])
    assert torch.equal(after["sink_v"], v[:, :, :2])
    assert list(after) == ["k", "v", "sink_k", "sink_v", "S", "z"]
    assert made.needs_position
    features = made.maps.k.of(k[:, :, 2:5], False, TorchOps())
    torch.testing.assert_close(after["z"], features.sum(2))
    torch.testing.assert_close(after["S"], features.mT @ v[:, :, 2:5])


@torch.no_grad()
def test_the_present_token_decays_what_is_far() -> None:
    made, x = mixer("learned", "sum", 3, kind="data"), text(6)
    _, after = made(x, empty(made))
    k = made.k(x).view(B, 6, G, V).transpose(1, 2)
    features = made.maps.k.of(k[:, :, :3], False, TorchOps())  # of the tokens that leave at the steps 3, 4 and 5
    kept = made.gates.logits(x, TorchOps()).sigmoid()[..., None]
    expected = (features[:, :, 0] * kept[:, 4] + features[:, :, 1]) * kept[:, 5] + features[:, :, 2]
    torch.testing.assert_close(after["z"], expected)


@torch.no_grad()
def test_gated_hybrid_initially_near_ungated() -> None:
    torch.manual_seed(0)
    configs = HybridConfig(3, K), HybridConfig(3, K, update_rule="gated", gate="data")
    plain, gated = (Alone(GPT2, layer(GPT2, config).double()) for config in configs)
    gated.load_state_dict(plain.state_dict(), strict=False)
    x = text(20)
    (y, _), (expected, _) = gated(x, empty(gated)), plain(x, empty(plain))
    assert 0 < (y - expected).abs().max() < 0.02 * expected.abs().max()


@torch.no_grad()
def test_a_small_scale_starts_at_the_window_alone() -> None:
    """map_scale changes the first weights of the maps and nothing else."""
    x, found = text(20), []
    for scale in (1.0, 1e-3):
        torch.manual_seed(0)
        made = Alone(LLAMA, layer(LLAMA, HybridConfig(3, K, map_scale=scale)).double())
        window = Alone(LLAMA, layer(LLAMA, WindowConfig(3, sinks=0)).double())
        window.load_state_dict(made.state_dict(), strict=False)
        away = (made(x, empty(made))[0] - window(x, empty(window))[0]).abs().max()
        found.append((made.state_dict(), away))
    (loud, far), (quiet, near) = found
    assert 0 < near < 1e-4 * far
    for name, weight in quiet.items():
        factor = 1e-3 if name.endswith(("maps.q.weight", "maps.k.weight")) else 1.0
        torch.testing.assert_close(weight, factor * loud[name])


@torch.no_grad()
def test_token_gate_initially_equals_learned_gate() -> None:
    torch.manual_seed(0)
    configs = [HybridConfig(3, K, merge=merge, sinks=1) for merge in ("gate", "token")]
    plain, token = (Alone(LLAMA, layer(LLAMA, config).double()) for config in configs)
    token.load_state_dict(plain.state_dict(), strict=False)
    x = text(20)
    torch.testing.assert_close(token(x, empty(token))[0], plain(x, empty(plain))[0])


@merges
@models
@pytest.mark.parametrize("target", ["portable", "fused", "npu"])
@pytest.mark.parametrize("kind", ["data", "fixed_sinks"])
def test_graph_with_gates_and_sinks_matches_model(
    model: str, merge: str, target: str, kind: str, tmp_path: Path
) -> None:
    layers = (HybridConfig(5, K, merge=merge, **KINDS[kind]),) * 2
    config = dataclasses.replace(MODELS[model], layers=layers)
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config, target=target, batch=2)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=60).passed


@merges
@models
@pytest.mark.parametrize("target", ["portable", "fused", "npu"])
def test_the_graph_is_the_model(model: str, merge: str, target: str, tmp_path: Path) -> None:
    layers = (HybridConfig(5, K, merge=merge), HybridConfig(5, 6, "hedgehog", merge, Guard("clamp", 1e-2)))
    checkpoint, _ = small.graph(
        tmp_path / "g.onnx", dataclasses.replace(MODELS[model], layers=layers), target=target, batch=2
    )
    proof = small.proof(checkpoint, tmp_path / "g.onnx", steps=60)
    assert proof.passed, proof
    described = describe(tmp_path / "g.onnx")
    assert described.memory == "constant"
    (kind, options, _, fold), _ = described.rows[1]
    assert (kind, options) == (
        "hybrid",
        "window=5,feature_size=6,feature_map=hedgehog,"
        + f"merge={merge}," * (merge != "sum")
        + "guard.kind=clamp,guard.eps=0.01",
    )
    assert fold.startswith("not folded: keys are")


@merges
@kinds
def test_every_weight_learns(merge: str, kind: str) -> None:
    made = mixer("rotary", merge, 3, kind=kind)
    small.assert_learns(made, made(text(9), empty(made))[0])


def test_gates_and_sinks_are_in_the_summary() -> None:
    assert HybridConfig(4, K, **KINDS["fixed_sinks"]).summary() == (
        "window=4,feature_size=5,guard.kind=add,guard.eps=1e-06,update_rule=gated,gate=fixed,sinks=1"
    )


@pytest.mark.parametrize(
    "config, message",
    [
        (lambda: HybridConfig(0, K), "expected window to be an integer from 1 to 1048576; received 0; correct win"),
        (
            lambda: HybridConfig(4, K, merge="mean"),
            "expected merge to be one of sum, gate, token; received 'mean'; choose one",
        ),
        (
            lambda: HybridConfig(4, K, sinks=-1),
            "expected sinks to be an integer from 0 to 1048576; received -1; correct sinks",
        ),
        (
            lambda: HybridConfig(4, K, update_rule="delta"),
            "expected update_rule to be one of linear, gated; received 'delta'; choose one of those for update_rule",
        ),
        (
            lambda: HybridConfig(4, K, update_rule="gated"),
            "expected a gate of fixed, data, pair for the update rule gated; received gate none; choose one of those",
        ),
        (
            lambda: HybridConfig(4, K, gate="data"),
            "expected a gate of none for the update rule linear; received gate data; choose one of those",
        ),
        (
            lambda: HybridConfig(4, K, merge="gate", map_scale=0.1),
            "expected merge sum and feature_map relu with map_scale; received merge gate, feature_map relu; leave map_",
        ),
        (
            lambda: HybridConfig(4, 6, "hedgehog", map_scale=0.1),
            "expected merge sum and feature_map relu with map_scale; received merge sum, feature_map hedgehog; leave m",
        ),
        (lambda: HybridConfig(4, 0), "expected feature_size to be an integer from 1 to 1048576; received 0; corr"),
        (lambda: HybridConfig(4, K, "tanh"), "expected feature_map to be one of relu, relu2, elu, rfa, favor, dpfp"),
        (
            lambda: dataclasses.replace(GPT2, layers=(HybridConfig(4, 5, "elu"),)),
            "expected feature_size to be the head size, 4, with the feature map elu; received 5; correct feature_size",
        ),
    ],
)
def test_impossible_hybrids(config: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        config()  # type: ignore[operator]
    assert str(caught.value).startswith(message)

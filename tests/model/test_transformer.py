"""The eager model's forms agree: steps, the chunked form, splits and batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

import small
from small import CONFIGS, GPT2, POSITIONS, VOCABULARY, B, T
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.model.activations import activate
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_export.proof.rounding import own_rounding
from t2r_export.proof.side_by_side import Text
from t2r_export.proof.tolerances import widened
from t2r_runtime.errors import UserError

NAMES = [*CONFIGS, *(f"translator_{name}" for name in small.TRANSLATORS)]
names = pytest.mark.parametrize("name", NAMES)
any_name = st.sampled_from(NAMES)
decoders = pytest.mark.parametrize("name", CONFIGS)


@torch.no_grad()
@names
@pytest.mark.parametrize("wide", [torch.float64, torch.float32])
def test_steps_are_the_parallel_form(name: str, wide: torch.dtype) -> None:
    made, tolerance = small.model(name).to(wide), 1e-4 if wide is torch.float32 else small.float64_tolerance(name)
    ids, start = small.ids(length=19), small.states(made)
    if wide is torch.float32:  # cancellation in sums near zero depends on the processor
        tolerance = widened(tolerance, own_rounding(made, [Text(start, list(ids.T))]).logits)
    logits, after = made.prefill(ids, start)
    by_steps, stepped = small.by_steps(made, ids, start)
    assert logits.shape == (B, 19, VOCABULARY)
    torch.testing.assert_close(by_steps, logits, rtol=tolerance, atol=tolerance)
    small.assert_states(stepped, after, tolerance)


@torch.no_grad()
@settings(max_examples=30)
@given(any_name, st.integers(1, T - 1))
def test_split_anywhere(name: str, at: int) -> None:
    made = small.model(name).double()
    ids, start = small.ids(), small.states(made)
    logits, after = made.prefill(ids, start)
    first, between = made.prefill(ids[:, :at], start)
    second, end = made.prefill(ids[:, at:], between)
    tolerance = small.float64_tolerance(name)
    torch.testing.assert_close(torch.cat([first, second], 1), logits, rtol=tolerance, atol=tolerance)
    small.assert_states(end, after, 1e-10)


@torch.no_grad()
@names
def test_a_batch_is_its_rows(name: str) -> None:
    made = small.model(name).double()
    ids, start = small.ids(3), small.states(made, 3)
    logits, after = made.prefill(ids, start)
    for row in range(3):
        alone, end = made.prefill(ids[row : row + 1], {n: value[row : row + 1] for n, value in start.items()})
        torch.testing.assert_close(alone[0], logits[row], rtol=1e-10, atol=1e-10)
        small.assert_states(end, {n: value[row : row + 1] for n, value in after.items()}, 1e-10)


@torch.no_grad()
@decoders
def test_forward_starts_from_the_initial_state(name: str) -> None:
    made = small.model(name)
    ids = small.ids()
    assert torch.equal(made(ids), made.prefill(ids, made.init_state(B))[0])
    start = small.states(made)
    assert torch.equal(made(ids, start), made.prefill(ids, start)[0])
    assert not torch.allclose(made(ids, start), made(ids), atol=1e-3)


@torch.no_grad()
@names
def test_every_state_is_read(name: str) -> None:
    made = small.model(name).double()
    start, ids = small.states(made), small.ids()
    logits = made(ids, start)
    for state, value in start.items():
        # scaled, not shifted: a softmax is invariant if all keys move alike
        changed = start | {state: value + 1 if value.dtype == torch.int32 else 1.5 * value}
        counted = name == "rotary_drop" and state == "position"  # none of its layers reads the position
        assert bool((made(ids, changed) - logits).abs().max() > 1e-6) is not counted, state


@decoders
def test_states_are_those_of_the_spec(name: str) -> None:
    made = small.model(name)
    start = made.init_state(3)
    _, after = made.step(small.ids(3, 1)[:, 0], start)
    assert [s.name for s in made.state_spec()] == list(start)
    assert after.keys() == start.keys()
    for spec in made.state_spec():
        for values, length in ((start, 0), (after, 1)):
            assert tuple(values[spec.name].shape) == spec.dims(3, length)
            assert str(values[spec.name].dtype) == f"torch.{spec.dtype}"
        assert (start[spec.name] == spec.initial).all()


def test_state_names() -> None:
    assert [s.name for s in small.model("hybrid").state_spec()] == [
        "S.0",
        "z.0",
        "k.1",
        "v.1",
        "S.2",
        "z.2",
        "position",
    ]
    assert [s.name for s in small.model("none").state_spec()] == ["S.0", "z.0", "S.1", "z.1"]


def test_states_are_as_precise_as_the_model() -> None:
    assert small.model().double().init_state(1)["S.0"].dtype == torch.float64
    assert small.model().bfloat16().init_state(1)["S.0"].dtype == torch.float32


@torch.no_grad()
def test_order_matters_where_positions_are() -> None:
    """One softmax layer without positions sees a set of tokens, not their order."""
    config = dataclasses.replace(CONFIGS["none"], layers=(small.SOFTMAX,))
    for kind, seen in ((config, False), (dataclasses.replace(config, position="learned", max_positions=9), True)):
        made, ids = small.model(kind), small.ids()
        swapped = ids[:, [1, 0, *range(2, T)]]
        assert torch.allclose(made(ids)[:, -1], made(swapped)[:, -1], atol=1e-5) is not seen


def test_learned_positions_end() -> None:
    made, ids = small.model(), small.ids(1, POSITIONS + 1)
    made(ids[:, :POSITIONS])
    with pytest.raises(UserError, match="positions 0 to 39, the rows of the learned table; received position 40"):
        made(ids)
    with pytest.raises(UserError, match="received position 40"):
        made.step(ids[:, 0], made.init_state(1) | {"position": torch.tensor([POSITIONS], dtype=torch.int32)})


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = Transformer(GPT2.build()), Transformer(dataclasses.replace(GPT2, tied_head=False).build())
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight


@pytest.mark.parametrize(
    "name, expected", [("relu", 0.0), ("silu", -0.268941), ("gelu", -0.158655), ("gelu_tanh", -0.158808)]
)
def test_activations_at_minus_one(name: str, expected: float) -> None:
    assert float(activate(torch.tensor(-1.0), name, TorchOps())) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = ACT2FN[{"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)]
    x = torch.linspace(-12, 12, 97)
    torch.testing.assert_close(activate(x, name, TorchOps()), theirs(x), rtol=1e-6, atol=1e-6)
    made, _ = small.graph(tmp_path / "g.onnx", dataclasses.replace(GPT2, activation=name))
    assert small.proof(made, tmp_path / "g.onnx", steps=9).passed

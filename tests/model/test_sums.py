"""Options of the sums between parts: ReZero, and the Runge-Kutta blocks of the ODE Transformer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import small
from small import GATED, GPT2, LINEAR, LLAMA, MAMBA, SHARED, SOFTMAX
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError

REZERO = dataclasses.replace(GPT2, norm="none", rezero=True)
RK2 = small.with_layers(dataclasses.replace(LLAMA, rk2=True), GATED[0], MAMBA, small.WINDOW)


@torch.no_grad()
def test_a_fresh_rezero_model_is_its_embedding() -> None:
    """x + α f(x) with α = 0: the rows of the last block are those of the first (eq. 3)."""
    made, ids = initialize(REZERO.build(), 0), small.ids()
    traces = made.traces(ids)
    assert torch.equal(traces[-1].output, traces[0].input)
    assert [name for name, _ in made.named_parameters() if "alpha" in name] == [
        f"blocks.{layer}.residuals.{part}.alpha" for layer in range(2) for part in range(2)
    ]


@torch.no_grad()
def test_rezero_weighs_each_part() -> None:
    made, ids = small.model(REZERO), small.ids()
    trace, block = made.traces(ids)[0], made.blocks[0]
    sums = trace.input
    for part, joined in zip(trace.parts, block.residuals, strict=True):
        assert torch.equal(part.normed, sums)  # without norms
        sums = sums + joined.alpha * part.mixed
    torch.testing.assert_close(trace.output, sums)


@torch.no_grad()
def test_an_rk2_block_is_its_definition() -> None:
    """x + (F(x) + F(x + F(x))) / 2, each stage with states of its own (eq. 5)."""
    made, ids = small.model(RK2).double(), small.ids()
    plain = small.model(dataclasses.replace(RK2, rk2=False)).double()
    assert made.state_dict().keys() == plain.state_dict().keys()
    states = made.init_state(len(ids))
    step = made.context(states, made.ops(ids.shape[1]))
    for layer, trace in enumerate(made.traces(ids)):
        once, empty = plain.blocks[layer], plain.layer_state(plain.init_state(len(ids)), layer)
        x = trace.input
        first = once(x, empty, step)[0] - x
        second = once(x + first, empty, step)[0] - (x + first)
        torch.testing.assert_close(trace.output, x + (first + second) / 2)


@torch.no_grad()
def test_steps_are_the_sequence_from_any_states() -> None:
    made, ids = small.model(RK2).double(), small.ids()
    states = small.states(made)
    names = [spec.name for spec in made.state_spec()]
    assert names[:4] == ["S.0", "z.0", "S_rk2.0", "z_rk2.0"]
    expected, after = small.by_steps(made, ids, states)
    received, end = made.prefill(ids, states)
    torch.testing.assert_close(received, expected)
    small.assert_states(end, after, 1e-5)


@torch.no_grad()
def test_a_folded_rk2_model_keeps_both_states() -> None:
    made, ids = small.model(dataclasses.replace(GPT2, rk2=True)).double(), small.ids()
    folded, report = fold(made)
    assert all(part.folded for part in report)
    states = small.states(made)
    logits, after = made.prefill(ids, states)
    found, end = folded.prefill(ids, made.fold_states(states))
    torch.testing.assert_close(found, logits)
    small.assert_states(end, made.fold_states(after), 1e-9)


@pytest.mark.parametrize("config", [REZERO, RK2], ids=["rezero", "rk2"])
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_the_graph_is_the_model(config: small.UniformConfig, target: str, tmp_path: Path) -> None:
    loaded = small.checkpoint(config)
    export(loaded, tmp_path / "g.onnx", ExportConfig(target=target, prefill=True, draft_check=True))
    outcome = small.proof(loaded, tmp_path / "g.onnx", steps=40)
    assert outcome.passed, outcome


def test_what_cannot_run_twice_is_refused() -> None:
    with pytest.raises(UserError, match="a residual sum with rezero; received another"):
        dataclasses.replace(GPT2, residual=False, norm="none", rezero=True)
    expected = "without norm_sum, a source or another layer's weights in an rk2 layer; received"
    for base in (small.with_layers(GPT2, SOFTMAX, SHARED), dataclasses.replace(GPT2, norm_position="post")):
        with pytest.raises(UserError, match=expected):
            dataclasses.replace(base, rk2=True)
    with pytest.raises(UserError, match=f"{expected} softmax"):
        small.translator(base=dataclasses.replace(GPT2, rk2=True, layers=(LINEAR, LINEAR)))

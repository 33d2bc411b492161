"""Folding preserves outputs; wrong folds are detected."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from small import CONFIGS, GPT2
from t2r_export.config.mixers import Guard, LinearConfig
from t2r_export.errors import CheckFailed
from t2r_export.fold import FOLD_TOLERANCE, fold, fold_error
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.ops import State
from t2r_export.model.parts.attention import Attention
from t2r_export.model.transformer import Transformer


def precise(made: Transformer) -> Transformer:
    """Convert weights to float64, except those of positions, which are float32 in every model."""
    for weight in made.parameters():
        weight.data = weight.data.double()
    return made


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tolerance", [1e-10, 1e-4])
def test_fold_preserves_output(name: str, tolerance: float) -> None:
    made = small.model(name) if tolerance > 1e-8 else precise(small.model(name))
    folded, _ = fold(made)
    ids, start = small.ids(), small.states(made)
    (logits, after), (logits_folded, after_folded) = (m.prefill(ids, start) for m in (made, folded))
    torch.testing.assert_close(logits_folded, logits, rtol=tolerance, atol=tolerance)
    small.assert_states(after_folded, after, tolerance)
    (logits, after), (logits_folded, after_folded) = (small.by_steps(m, ids, start) for m in (made, folded))
    torch.testing.assert_close(logits_folded, logits, rtol=tolerance, atol=tolerance)
    small.assert_states(after_folded, after, tolerance)


@settings(max_examples=20)
@given(st.integers(1, 6), st.floats(0.01, 100), st.sampled_from(Guard.KINDS), st.booleans())
def test_fold_preserves_output_at_any_size(K: int, scale: float, guard: str, bias: bool) -> None:
    layer = LinearConfig(K, query_scale=scale, guard=Guard(guard, 0.1))
    made = small.model(dataclasses.replace(GPT2.with_attention(qkv_bias=bias), layers=(layer,)))
    _, (report,) = fold(made)
    assert report.error is not None
    assert report.error < 1e-12


def test_report() -> None:
    folded, report = fold(small.model("hybrid"))
    assert [(r.layer, r.kind, r.folded, r.status) for r in report] == [
        (0, "linear", False, "not folded: positions are rotated between the projection and φ (positions='keep')"),
        (1, "softmax", False, "not folded: softmax layers have no feature map to fold"),
        (2, "linear", True, "folded"),
    ]
    assert [r.error is None for r in report] == [True, True, False]
    assert [mixer.folded for mixer in small.mixers(folded.config)] == [False, False, True]


def test_fold_keeps_original() -> None:
    made = small.model()
    before = {name: weight.clone() for name, weight in made.state_dict().items()}
    folded, _ = fold(made)
    assert made.config == GPT2.build()
    assert made.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in made.state_dict().items())
    assert folded.head.weight is folded.embedding.weight, "a tied head stays tied"
    shared = {weight.data_ptr() for weight in made.parameters()} & {weight.data_ptr() for weight in folded.parameters()}
    kept = {"embedding.weight", "blocks.0.parts.0.o.weight"}
    assert {made.get_parameter(name).data_ptr() for name in kept} <= shared, "what a fold leaves needs no second memory"


def test_fold_is_idempotent() -> None:
    once, _ = fold(small.model())
    twice, report = fold(once)
    assert [(r.folded, r.error) for r in report] == [(True, None), (True, None)]
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))


def test_fold_error_of_zero_output() -> None:
    """A layer with zero output, common at the start of training: exact, no 0/0."""
    made = small.model(dataclasses.replace(GPT2.with_attention(output_bias=False), layers=(small.LINEAR,)))
    made.blocks[0].mixers[0].o.weight.data.zero_()  # type: ignore[operator, union-attr]
    _, (report,) = fold(made)
    assert report.error is not None
    assert report.error < 1e-12


FAULTS = ["qkv.weight", "qkv.bias", "o.weight", "guard", "scale", "nan"]


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_fold_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Attention.fold

    @torch.no_grad()
    def wrong(self: Attention) -> Attention:
        folded = right(self)
        if fault == "guard":
            folded.inner.config = dataclasses.replace(folded.inner.config, guard=Guard("add", 1e-2))  # type: ignore[call-arg]
        elif fault == "scale":
            folded.qkv.weight[: small.H * small.K] /= 0.5  # type: ignore[operator, index, union-attr]
        elif fault == "nan":
            folded.qkv.weight[-1, 0] = float("nan")  # type: ignore[operator, index, union-attr]
        else:
            folded.get_parameter(fault)[3] += 1e-6
        return folded

    made = small.model(dataclasses.replace(GPT2, layers=(small.SOFTMAX, small.LINEAR)))
    assert fold_error(made.blocks[1].mixers[0]) <= FOLD_TOLERANCE
    monkeypatch.setattr(Attention, "fold", wrong)
    assert not fold_error(made.blocks[1].mixers[0]) <= FOLD_TOLERANCE
    message = r"^layer 1 folded differs by (\d\.\de[-+]\d\d|nan) relative, tolerance 1e-10$"
    with pytest.raises(CheckFailed, match=message):
        fold(made)


@pytest.mark.parametrize("state", ["S", "z"])
@pytest.mark.parametrize("factor", [1 + 1e-9, float("nan")])
def test_state_fault_is_detected(state: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LinearMixer.forward

    def wrong(self: LinearMixer, *args: Any) -> tuple[torch.Tensor, State[torch.Tensor]]:
        y, after = right(self, *args)
        return y, after | {state: after[state] * (factor if self.config.folded else 1)}

    monkeypatch.setattr(LinearMixer, "forward", wrong)
    with pytest.raises(CheckFailed, match="layer 0 folded differs by "):
        fold(small.model())

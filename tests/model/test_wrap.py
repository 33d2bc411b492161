"""Positions that wrap: absolute positions are modulo N, distances are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

import small
from small import POSITIONS
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder, Sampling
from t2r_runtime.contract.state_spec import POSITION
from t2r_runtime.errors import UserError

N, LONG = 6, 23  # three times past the end of N, from any first position
SEED = 2  # float32 computes all models well; seed 0's divide by sums near zero
PLACES = ("learned", "sinusoidal", "rotary_keep", "gated", "gated_rotary", "delta_rotary", "memory")
DISTANCES = ("rotary_after", "conv_after", "hybrid_after", "rotary_drop", "none", "lstm")
BOTH = (
    "average",
    "window",
    "window_rotary",
    "hybrid",
    "hybrid_sum",
    "hybrid_gate",
    "hybrid_gated",
    "memory_softmax",
    "softmax",
)


def wrapped(name: str, past_end: str = f"wrap:{N}", wide: torch.dtype = torch.float32) -> Transformer:
    made = small.model(name).to(wide)
    made.end_positions(past_end)
    return made


def steps(made: Transformer, ids: Tensor, states: State, before: Callable[[State], State]) -> tuple[Tensor, State]:
    """Logits (B, T, vocabulary) and the last states, with `before` called on the states of each step."""
    logits = []
    for column in ids.T:
        row, states = made.step(column, before(states))
        logits.append(row)
    return torch.stack(logits, 1), states


@torch.no_grad()
@pytest.mark.parametrize("name", PLACES)
def test_it_is_the_sums_carried_on_and_the_position_set_back(name: str) -> None:
    """With absolute positions only: equals steps of the model without a wrap, each at its position modulo N."""
    made, ids = wrapped(name), small.ids(length=LONG)
    start = small.states(made)
    expected, after = steps(small.model(name), ids, start, lambda s: {**s, POSITION: s[POSITION] % N})
    received, states = steps(made, ids, start, lambda s: s)
    assert torch.equal(received, expected)
    assert torch.equal(states[POSITION], start[POSITION] + LONG), "the count goes on"
    for key in states.keys() - {POSITION}:
        assert torch.equal(states[key], after[key])
    free = wrapped(name, "clamp")  # also past the table
    assert not torch.allclose(steps(free, ids, start, lambda s: s)[0][:, N:], expected[:, N:], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_do_not_wrap(name: str) -> None:
    ids, start = small.ids(length=LONG), small.states(small.model(name))
    received = steps(wrapped(name), ids, start, lambda s: s)
    expected = steps(small.model(name), ids, start, lambda s: s)
    assert torch.equal(received[0], expected[0])


def test_softmax_and_windows_alone_do_not_wrap() -> None:
    for layer in (small.SOFTMAX, small.WINDOW):
        config = small.with_layers(small.LLAMA, layer, layer)
        made, plain, ids = small.model(config), small.model(config), small.ids(length=LONG)
        made.end_positions(f"wrap:{N}")
        with torch.no_grad():
            assert torch.equal(made(ids), plain(ids))


@torch.no_grad()
@pytest.mark.parametrize("name", [*PLACES, *BOTH])
def test_a_sequence_is_its_steps(name: str) -> None:
    made, ids = wrapped(name, wide=torch.float64), small.ids(length=LONG)
    start = small.states(made)
    expected, after = steps(made, ids, start, lambda s: s)
    received, states = made.prefill(ids, start)
    tolerance = small.float64_tolerance(name)
    torch.testing.assert_close(received, expected, rtol=tolerance, atol=tolerance)
    small.assert_states(states, after, tolerance)


@torch.no_grad()
def test_a_long_text_is_like_its_first_tokens() -> None:
    """The same place and sums give the same logits, whatever the count."""
    made, ids = wrapped("rotary_keep"), small.ids(length=1)
    start = small.states(made)
    far = {**start, POSITION: start[POSITION] + 10**9 // N * N}
    assert torch.equal(made.step(ids[:, 0], far)[0], made.step(ids[:, 0], start)[0])


@pytest.mark.parametrize("name", [*PLACES, *BOTH])
def test_graphs_wrap_as_the_model_does(name: str, tmp_path: Path) -> None:
    """Chained steps over many wraps, and the prefill graph: the whole proof."""
    options = {"prefill": True, "target": "fused" if name == "rotary_keep" else "portable"}
    checkpoint = small.checkpoint(name, SEED)
    report = export(checkpoint, tmp_path / "g.onnx", ExportConfig(past_end=f"wrap:{N}", **options))
    assert report.signature.past_end == f"wrap:{N}"
    proof = small.proof(checkpoint, tmp_path / "g.onnx", steps=60)
    assert proof.passed, proof.checks
    assert checkpoint.model.positions.past_end == "refuse"
    decoder = Decoder(tmp_path / "g.onnx")
    decoder.prefill(small.ids(1, 2 * POSITIONS))
    decoder.generate([1], POSITIONS, Sampling(0, stop_tokens=()))
    assert decoder.position == 3 * POSITIONS


def test_npu_graphs_wrap(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", "gated_rotary", past_end=f"wrap:{N}", target="npu")
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=40).passed


def test_verify_detects_missing_wrap(tmp_path: Path) -> None:
    checkpoint, report = small.graph(tmp_path / "g.onnx", "rotary_keep")
    model = onnx.load(tmp_path / "g.onnx")
    (said,) = (entry for entry in model.metadata_props if entry.key == "t2r.past_end")
    said.value = f'"wrap:{N}"'
    onnx.save(model, tmp_path / "g.onnx")
    failed = [check.name for check in small.proof(checkpoint, tmp_path / "g.onnx", steps=20).checks if not check.passed]
    assert "chained steps, logits" in failed


@pytest.mark.parametrize(
    "past_end", ["wrap", "wrap:", "wrap:0", "wrap:-1", "wrap:2.5", "wrap:x", "wrap:07", "wrap:9999999999", "loop", ""]
)
def test_what_is_no_wrap(past_end: str) -> None:
    with pytest.raises(UserError) as caught:
        ExportConfig(past_end=past_end)
    assert str(caught.value) == (
        f"expected past_end of refuse, clamp or wrap:N, N of at least 1; received {past_end!r}; choose one of those"
    )


def test_a_wrap_past_the_table(tmp_path: Path) -> None:
    export(small.checkpoint(), tmp_path / "g.onnx", ExportConfig(past_end=f"wrap:{POSITIONS}"))
    with pytest.raises(UserError) as caught:
        export(small.checkpoint(), tmp_path / "h.onnx", ExportConfig(past_end=f"wrap:{POSITIONS + 1}"))
    assert str(caught.value) == (
        "expected past_end wrap:N with N of at most 40, where this model's positions end; received wrap:41; "
        "choose a smaller N"
    )
    assert not (tmp_path / "h.onnx").exists()

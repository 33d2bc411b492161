"""Verification passes correct graphs and detects every injected fault."""

from __future__ import annotations

import dataclasses
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import faults
import small
from small import CONFIGS, GPT2, LINEAR, H, K
from t2r_export import fold
from t2r_export.export import export
from t2r_export.proof.checks import PIECE
from t2r_export.proof.side_by_side import SideBySide
from t2r_export.verify import verify
from t2r_runtime import PROVIDERS, Decoder
from t2r_runtime.errors import UserError

STEPS = 40
NAMES = {
    "logits": "chained steps, logits",
    "states": "chained steps, states",
    "start": "from the start, logits",
    "start states": "from the start, states",
    "parallel": "parallel form against steps, logits",
    "parallel states": "parallel form against steps, states",
    "batch": "batch against single, logits",
    "batch states": "batch against single, states",
    "fold": "folded against unfolded, float64, relative",
}
OUTPUTS = {"logits", "start", "parallel"}
ALL = set(NAMES) - {"batch", "batch states", "fold"}
LATE = {"logits", "states", "parallel", "parallel states"}  # only after a token has left the window


@pytest.mark.parametrize("name, layout", [*zip(CONFIGS, cycle(("layers", "packed")))])
def test_correct_graph_passes(name: str, layout: str, tmp_path: Path) -> None:
    checkpoint, report = small.graph(tmp_path / "g.onnx", name, state_layout=layout)
    proof = small.proof(checkpoint, tmp_path / "g.onnx", STEPS)
    assert proof.passed, proof
    assert proof.same_checkpoint
    folded = any(f.error is not None for f in report.folds)
    assert {c.name for c in proof.checks} == {v for n, v in NAMES.items() if n != "fold" or folded}


@pytest.mark.parametrize("name", ["learned", "rotary_keep", "hybrid"])
def test_against_float64(name: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name)
    narrow, wide = (
        verify(checkpoint, tmp_path / "g.onnx", steps=12, rounding=True, reference=reference)
        for reference in ("float32", "float64")
    )
    assert wide.passed, wide
    assert wide.to_dict()["reference"] == "float64"
    assert [check.name for check in wide.checks] == [check.name for check in narrow.checks]
    for check, other in zip(wide.checks, narrow.checks, strict=True):
        if check.name.startswith("chained steps"):  # float32's error, not the difference of two float32 results
            assert check.worst > 0
            assert check.worst != other.worst
            assert check.worst <= 4 * (check.rounding or 0)


@pytest.mark.parametrize("name", ["learned", "rotary_keep", "hybrid", "window_rotary", "delta", "lstm"])
def test_long_chain_against_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in pieces, whose last may be shorter; texts restart at the last position."""
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name)
    steps, done, written = 2 * PIECE + 9, list[int](), list[int]()
    right = SideBySide.write
    monkeypatch.setattr(SideBySide, "write", lambda *given: written.append(given[2]) or right(*given))
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=steps, on_progress=done.append, reference="float64")
    assert proof.passed, proof
    assert sum(written) == done[-1] == steps
    assert max(written) == (PIECE if checkpoint.config.max_positions is None else checkpoint.config.max_positions - 5)
    assert done == [sum(written[: n + 1]) for n in range(len(written))]


@torch.inference_mode()
def test_pieces_equal_steps(tmp_path: Path) -> None:
    """A piece written at once equals the same tokens one by one."""
    checkpoint, _ = small.graph(tmp_path / "g.onnx", "rotary_keep")
    eager, decoder = checkpoint.model.double(), Decoder(tmp_path / "g.onnx", threads=1)
    both = SideBySide(eager, decoder, eager.state_spec(), torch.Generator().manual_seed(3))
    start = both.random_state(2)
    both.begin(start)
    expected, received = both.write(torch.tensor([4, 5]), 9)
    assert expected.shape == received.shape == (9, 2, small.VOCABULARY)
    errors, (text,) = both.compared()
    after = both.states
    assert len({tuple(ids.tolist()) for ids in text.ids}) > 4, "drawn"
    both.begin(start)
    for n, ids in enumerate(text.ids):
        logits, ours = both.step(ids)
        np.testing.assert_array_equal(ours[0], received[n])
        torch.testing.assert_close(logits[0], expected[n], rtol=1e-12, atol=1e-12)
    small.assert_states(after, both.states, 1e-12)
    assert both.worst.or_worse(errors) == both.worst, "all steps, the last of them too"


def test_fixed_batch_skips_single_check(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", batch=3)
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=STEPS)
    assert proof.passed
    assert NAMES["batch"] not in {c.name for c in proof.checks}


# fault -> the model, the change of its graph, and the checks that must fail (others may)
FAULTS: dict[str, tuple[str, Any, set[str]]] = {
    "two S change places": ("learned", faults.swap_outputs("present_S.0", "present_S.1"), ALL),
    "two z change places": ("none", faults.swap_outputs("present_z.0", "present_z.1"), ALL),
    "keys and values change places": ("hybrid", faults.swap_outputs("present_k.1", "present_v.1"), ALL),
    "S is handed out unchanged": ("learned", faults.unchanged("S.1"), ALL),
    "z is handed out unchanged": ("rotary_keep", faults.unchanged("z.0"), ALL),
    "the position stands still": ("sinusoidal", faults.unchanged("position"), ALL),
    "S is never read": ("learned", faults.unread("S.0"), ALL),
    "z is never read": ("rotary_drop", faults.unread("z.1"), ALL),
    "the position is never read": ("rotary_keep", faults.unread("position"), {"logits", "states"}),
    "a folded weight is off": ("learned", faults.weight("blocks.0.parts.0.qkv.weight", 0.01), {"logits", "states"}),
    "a bias is off": ("learned", faults.weight("norm.bias", 1e-3), OUTPUTS),
    "a weight is NaN": ("learned", faults.weight("blocks.1.parts.1.up.weight", float("nan")), OUTPUTS | {"batch"}),
    "a clamp is looser": ("sinusoidal", faults.constant(0.01, 0.001), {"start", "start states"}),
    "a clamp is tighter": ("rotary_keep", faults.constant(0.01, 0.1), {"logits", "start", "start states"}),
    "an added eps is another": ("rotary_drop", faults.constant(1e-3, 2e-3), {"logits", "states", "start"}),
    "heads change groups": ("learned", faults.regroup("wrong", (-1, 3, 2, 5)), ALL),
    "sine is cosine": ("rotary_keep", faults.swap_parts, ALL),
    "positions go by two": ("sinusoidal", faults.constant(1, 2), ALL),
    "a norm's eps is another": (
        "learned",
        faults.attribute("LayerNormalization", "epsilon", 1e-3),
        {"logits", "states"},
    ),
    "the window stands still": ("window", faults.unchanged("k.0"), ALL),
    "a scale is another": ("window_8_bits", faults.constant(127, 120), ALL),
    "8 bits are read without their scale": ("window_8_bits", faults.unread("v_scale.1"), ALL),
    "a sink is not kept": ("window", faults.unchanged("sink_k.1"), {"start", "start states"}),
    "a sink is never read": ("window_rotary", faults.unread("sink_v.1"), ALL),
    "the tokens are not counted": ("window_rotary", faults.unchanged("position"), {"states", "start", "start states"}),
    "absent tokens are seen": ("window", faults.constant(-3e4, 0), {"start"}),
    "what left the window is forgotten": ("hybrid_sum", faults.unread("S.0"), LATE),
    "what leaves the window is lost": ("hybrid_gate", faults.unchanged("S.0"), LATE),
    "sequences see each other": ("learned", faults.mix_batch, {"logits", "states", "batch"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_graph_fault_is_detected(fault: str, tmp_path: Path) -> None:
    name, wrong, seen_by = FAULTS[fault]
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name)
    proof = verify(checkpoint, faults.inject(tmp_path / "g.onnx", wrong), steps=STEPS)
    assert not proof.passed
    assert not proof.to_dict()["passed"]
    said_no = {c.name for c in proof.checks if not c.passed}
    assert {NAMES[n] for n in seen_by} <= said_no, said_no
    assert NAMES["fold"] not in said_no, "the fold is right; the graph is not"


@pytest.mark.parametrize("fault", sorted(FAULTS)[:3])
def test_graph_fault_is_detected_against_float64(fault: str, tmp_path: Path) -> None:
    name, wrong, seen_by = FAULTS[fault]
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name)
    proof = verify(checkpoint, faults.inject(tmp_path / "g.onnx", wrong), steps=STEPS, reference="float64")
    assert {NAMES[n] for n in seen_by} <= {c.name for c in proof.checks if not c.passed}


def test_swapped_packed_layers_are_detected(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", state_layout="packed")

    def reverse(graph: onnx.GraphProto) -> None:
        node = next(n for n in graph.node if "present_S" in n.output)
        node.input[:] = list(node.input)[::-1]

    proof = verify(checkpoint, faults.inject(tmp_path / "g.onnx", reverse), steps=STEPS)
    assert {c.name for c in proof.checks if not c.passed} >= {NAMES[n] for n in ALL}


def test_wrong_fold_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx")
    # skips the fold's own check, which would refuse it
    monkeypatch.setattr(fold, "FOLD_TOLERANCE", 1.0)
    monkeypatch.setattr(fold, "fold_error", lambda *_: 1e-9)
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=STEPS)
    assert [c.name for c in proof.checks if not c.passed] == [NAMES["fold"]]


def test_another_checkpoint(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    proof = verify(small.checkpoint(seed=1), tmp_path / "g.onnx", steps=3)
    assert not proof.same_checkpoint
    assert not proof.passed
    assert proof.first_greedy_mismatch is not None


@pytest.mark.parametrize("apart, passed", [(1e-6, True), (1e-2, False)])
def test_tie_is_no_greedy_mismatch(apart: float, passed: bool, tmp_path: Path) -> None:
    """Two nearly equal greedy tokens, swapped in the graph."""
    checkpoint, other = small.checkpoint("rotary_keep"), small.checkpoint("rotary_keep")
    for made, (first, second) in ((checkpoint.model, (3, 4)), (other.model, (4, 3))):
        row = 3 * made.head.weight.data[0].abs()
        made.head.weight.data[first], made.head.weight.data[second] = row, row * (1 + apart)
    export(other, tmp_path / "g.onnx")
    proof = verify(checkpoint, tmp_path / "g.onnx", steps=STEPS)
    assert proof.greedy_agreement < 1
    assert proof.passed is passed
    assert (proof.first_greedy_mismatch is None) is passed


@pytest.mark.parametrize("past_end", ["refuse", "clamp"])
def test_verify_past_end_of_positions(past_end: str, tmp_path: Path) -> None:
    """More steps than the table has rows: `refuse` restarts, `clamp` continues."""
    checkpoint, _ = small.graph(tmp_path / "g.onnx", past_end=past_end)
    done: list[int] = []
    assert verify(checkpoint, tmp_path / "g.onnx", steps=100, on_progress=done.append).passed
    assert done == list(range(1, 101))
    assert checkpoint.model.positions.past_end == "refuse", "the checkpoint's own model is left alone"


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"reference": "bfloat16"},
            "expected reference to be one of float32, float64; received 'bfloat16'; did you mean float64?",
        ),
        ({"steps": 0}, "expected at least 1 step; received 0; correct --steps"),
        (
            {"provider": "abacus"},
            f"expected a provider of: {', '.join(PROVIDERS)}; received 'abacus'; choose one of these",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx")
    with pytest.raises(UserError) as caught:
        verify(checkpoint, tmp_path / "g.onnx", **options)
    assert str(caught.value) == message


def test_another_quantization_has_no_tolerance(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx")
    model = onnx.load(tmp_path / "g.onnx")
    next(p for p in model.metadata_props if p.key == "t2r.quantization").value = '"int1"'
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(UserError) as caught:
        verify(checkpoint, tmp_path / "g.onnx")
    message = str(caught.value)
    assert message.startswith("expected a provider and quantization with a tolerance (cpu with none, cuda with none, ")
    assert message.endswith("); received cpu with int1; choose one of those")


def test_graph_of_other_shape_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    wider = dataclasses.replace(GPT2, layers=(LINEAR, dataclasses.replace(LINEAR, feature_size=K + 1)), vocab_size=18)
    with pytest.raises(UserError) as caught:
        verify(small.checkpoint(wider), tmp_path / "g.onnx")
    assert str(caught.value) == (
        "expected a graph of this model: 5 states, vocabulary 18; received 5 states, vocabulary 17, among them "
        "S.1 ['B', 3, 5, 4], z.1 ['B', 3, 5]; name the checkpoint that the graph was exported from"
    )


def test_model_with_too_few_positions_is_refused(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", dataclasses.replace(GPT2, max_positions=5))
    with pytest.raises(UserError) as caught:
        verify(checkpoint, tmp_path / "g.onnx")
    assert (
        str(caught.value) == "expected a model with more than 5 positions; received max_positions 5; nothing to verify"
    )


@pytest.mark.parametrize("left", [1, 2, 3])
def test_few_positions_behind_the_first_tokens(left: int, tmp_path: Path) -> None:
    config = dataclasses.replace(GPT2, max_positions=5 + left)
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config, prefill=True)
    report = verify(checkpoint, tmp_path / "g.onnx", steps=left)
    assert report.passed
    assert "split prefill against steps, logits" in {check.name for check in report.checks}


def test_seed_determines_text(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx")
    first, again, other = (verify(checkpoint, tmp_path / "g.onnx", steps=5, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.is_grad_enabled()
    assert checkpoint.config.heads[0].heads == H

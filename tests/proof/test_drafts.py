"""Verification of draft-check graphs passes correct graphs and detects faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import faults
import small
from t2r_export.verify import verify

Graph = onnx.GraphProto
CHECK = "draft-check graph against steps"


def keeps_another_number(op: str) -> Callable[[Graph], None]:
    """A fault: states after more tokens than kept, or fewer."""

    def fault(graph: Graph) -> None:
        one = helper.make_node("Constant", [], ["fault.one"], value_ints=[1])
        for node in graph.node:
            node.input[:] = ["fault.keep" if name == "keep" else name for name in node.input]
        graph.node.insert(0, helper.make_node(op, ["keep", "fault.one"], ["fault.keep"]))
        graph.node.insert(0, one)

    return fault


FAULTS = {
    "a token more is kept": ("none", keeps_another_number("Add")),
    "only one is kept": ("gated_rotary", keeps_another_number("Min")),
    "two states change places": ("learned", faults.swap_outputs("present_S.0", "present_S.1")),
    "S is handed out unchanged": ("delta_rotary", faults.unchanged("S.0")),
    "the position stands still": ("rotary_keep", faults.unchanged("position")),
    "a state is never read": ("conv_after", faults.unread("conv.0")),
}


@pytest.mark.parametrize("name", ["none", "hybrid_gated", "softmax", "lstm"])
def test_correct_graph_passes(name: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name, draft_check=True)
    report = verify(checkpoint, tmp_path / "g.onnx", steps=8)
    assert report.passed
    assert {f"{CHECK}, logits", f"{CHECK}, states"} <= {check.name for check in report.checks}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_detected(fault: str, tmp_path: Path) -> None:
    name, wrong = FAULTS[fault]
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name, draft_check=True)
    (companion,) = tmp_path.glob("*.draft_check.onnx")
    faults.inject(companion, wrong).replace(companion)
    report = verify(checkpoint, tmp_path / "g.onnx", steps=8)
    failed = {check.name for check in report.checks if not check.passed}
    assert failed and all(check.startswith(CHECK) for check in failed), failed

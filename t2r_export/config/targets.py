"""The forms in which one model can be written, by name: the table of targets.

A target chooses how the operators of a step become nodes, and at which opset; what is computed is the same, and a test
compares them all. The recorders themselves are in t2r_export.graph, found by name when a graph is made.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.config.validation import entry

OPSET = 21  # the newest that every ONNX Runtime since 1.20 takes; Debian's 1.21 refuses IR 11
IR_VERSION = 10


@dataclass(frozen=True)
class Target:
    """How a graph for a target is written."""

    recorder: str  # module:class
    opsets: Mapping[str, int]  # the operator sets that its nodes belong to, written down on purpose
    ir_version: int = IR_VERSION
    static: bool = False  # every dimension is a number
    ordinary: bool = True  # a state's sum is an Add
    shared_table: bool = True  # quantized, tokens are looked up in the numbers of a head that is tied to their table
    ort_style: str = "Fixed"  # Runtime: an .ort keeps these operators, where Fixed would merge them for the CPU

    @property
    def ops(self) -> Any:
        """The recorder's class."""
        return pkgutil.resolve_name(self.recorder)


TARGETS = {
    "portable": Target("t2r_export.graph.portable:GraphOps", {"": OPSET}),
    "fused": Target("t2r_export.graph.targets:FusedOps", {"": OPSET, "com.microsoft": 1}, ordinary=False),
    # the first opset with LinearAttention, and the newest IR that ONNX Runtime 1.31 reads
    "standard": Target("t2r_export.graph.targets:StandardOps", {"": 27}, 13, ordinary=False),
    "npu": Target("t2r_export.graph.targets:NpuOps", {"": OPSET}, static=True, shared_table=False, ort_style="Runtime"),
}


def find(name: str) -> Target:
    """The target of that name.

    Raises:
        UserError: there is none; lists those that are.
    """
    return entry("a target", name, TARGETS)

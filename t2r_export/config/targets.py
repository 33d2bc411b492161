"""Export targets: the operators and opset of a graph. All targets compute the same function, as a test verifies."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.config.validation import entry

OPSET = 21  # supported since ONNX Runtime 1.20; Debian's ONNX Runtime 1.21 refuses IR version 11
IR_VERSION = 10


@dataclass(frozen=True)
class Target:
    """Properties of a target."""

    recorder: str  # "module:Class", a t2r_export.graph.portable.GraphOps
    opsets: Mapping[str, int]  # by domain
    ir_version: int = IR_VERSION
    static: bool = False  # all dimensions are fixed
    ordinary: bool = True  # states are updated by Add
    shared_table: bool = True  # quantized tied embedding and head share their weights
    ort_style: str = "Fixed"  # optimization style of .ort files; Runtime keeps the operators

    @property
    def ops(self) -> Any:
        """The recorder's class."""
        return pkgutil.resolve_name(self.recorder)


TARGETS = {
    "portable": Target("t2r_export.graph.portable:GraphOps", {"": OPSET}),
    "fused": Target("t2r_export.graph.targets:FusedOps", {"": OPSET, "com.microsoft": 1}, ordinary=False),
    # the first opset with LinearAttention, and the newest IR version of ONNX Runtime 1.31
    "standard": Target("t2r_export.graph.targets:StandardOps", {"": 27}, 13, ordinary=False),
    "npu": Target("t2r_export.graph.targets:NpuOps", {"": OPSET}, static=True, shared_table=False, ort_style="Runtime"),
}


def find(name: str) -> Target:
    """Look up a target. Raises UserError for an unknown name."""
    return entry("a target", name, TARGETS)

"""A model as ONNX graphs of one set of weights: what an export builds, a quantization maps, and one writer writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from t2r_export.graph.weights import Weight
from t2r_runtime.contract.signature import ENCODER, Signature


@dataclass(frozen=True)
class Bundle:
    """A step graph and its companions, which get their metadata and their files' names when they are written."""

    step: onnx.ModelProto
    signature: Signature  # the step's; it names no companions yet
    weights: dict[str, Weight]  # by the names under which initializers refer to them
    companions: Mapping[str, onnx.ModelProto] = field(default_factory=dict)  # by their role
    notes: Mapping[str, str] = field(default_factory=dict)  # further metadata, informative

    @property
    def halves(self) -> tuple[onnx.ModelProto, ...]:
        """The step graph, and a translator's encoder graph behind it: all others are made of their weights."""
        return (self.step, *(graph for role, graph in self.companions.items() if role == ENCODER))

    @property
    def graphs(self) -> Iterator[onnx.ModelProto]:
        """The step first."""
        yield self.step
        yield from self.companions.values()

"""A model as ONNX graphs that share one set of weights. Exports build bundles, quantizers map them, one writer writes
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from t2r_export.graph.weights import Weight
from t2r_runtime.contract.signature import ENCODER, Signature


@dataclass(frozen=True)
class Bundle:
    """A step graph and its companions. Metadata and file names are set when the bundle is written."""

    step: onnx.ModelProto
    signature: Signature  # the step's; it names no companions yet
    weights: dict[str, Weight]  # by the names under which initializers refer to them
    companions: Mapping[str, onnx.ModelProto] = field(default_factory=dict)  # by their role
    notes: Mapping[str, str] = field(default_factory=dict)  # further metadata, informative

    @property
    def halves(self) -> tuple[onnx.ModelProto, ...]:
        """The step graph, followed by a translator's encoder graph. All other graphs use their weights."""
        return (self.step, *(graph for role, graph in self.companions.items() if role == ENCODER))

    @property
    def graphs(self) -> Iterator[onnx.ModelProto]:
        """The step first."""
        yield self.step
        yield from self.companions.values()

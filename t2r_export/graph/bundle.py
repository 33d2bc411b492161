"""A model as ONNX graphs that share one set of weights. Exports build bundles, quantizers transform them, and
t2r_export.graph.file writes them."""

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
    signature: Signature  # the step graph's, without companions
    weights: dict[str, Weight]  # keyed by the name that initializers refer to
    companions: Mapping[str, onnx.ModelProto] = field(default_factory=dict)  # keyed by role
    notes: Mapping[str, str] = field(default_factory=dict)  # additional informative metadata

    @property
    def halves(self) -> tuple[onnx.ModelProto, ...]:
        """The step graph, followed by a translator's encoder graph. All other graphs share their weights."""
        return (self.step, *(graph for role, graph in self.companions.items() if role == ENCODER))

    @property
    def graphs(self) -> Iterator[onnx.ModelProto]:
        """All graphs, the step graph first."""
        yield self.step
        yield from self.companions.values()

"""Summary of a graph file in either format (.onnx or .ort): metadata, weights, operators."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from t2r_export.graph.reader import ACTIVE, PARAMETERS, metadata, read_graph
from t2r_export.graph.releases import first_release
from t2r_runtime.session.session import open_graph


@dataclass(frozen=True)
class Contents:
    """Contents of a step graph's file."""

    metadata: dict[str, str]
    elements: int  # elements in all initializers
    opsets: dict[str, int]
    ir_version: int
    operators: Counter[str]
    release: str | None = None  # first ONNX Runtime release that opens the graph; None for an .ort file

    @property
    def parameters(self) -> int:
        """Number of model parameters as recorded at export; if not recorded, the number of elements in all
        initializers."""
        return self._recorded(PARAMETERS, self.elements)

    @property
    def active(self) -> int:
        """Number of parameters read per token; if not recorded, all."""
        return self._recorded(ACTIVE, self.parameters)

    def _recorded(self, key: str, otherwise: int) -> int:
        recorded = self.metadata.get(key, "")
        return int(recorded) if recorded.isascii() and recorded.isdigit() and len(recorded) < 19 else otherwise


def contents(path: Path) -> Contents:
    """Read the contents of a graph that the runtime accepts.

    Raises:
        UserError: what t2r_export.graph.reader.read_graph raises.
    """
    return _ort(path) if path.suffix == ".ort" else _onnx(path)


def _onnx(path: Path) -> Contents:
    model = read_graph(path).step
    return Contents(
        metadata=metadata(model),
        elements=sum(math.prod(t.dims) for t in model.graph.initializer),
        opsets={o.domain or "ai.onnx": o.version for o in model.opset_import},
        ir_version=model.ir_version,
        operators=Counter(node.op_type for node in model.graph.node),
        release=first_release(model),
    )


def _ort(path: Path) -> Contents:
    """Parse with the flatbuffer classes of ONNX Runtime's tools, after ONNX Runtime has validated the file."""
    open_graph(path)
    from onnxruntime.tools import ort_format_model  # noqa: F401  (required by the next import)
    from ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

    model = InferenceSession.GetRootAsInferenceSession(path.read_bytes(), 0).Model()
    graph = model.Graph()
    properties = [model.MetadataProps(i) for i in range(model.MetadataPropsLength())]
    domains = [model.OpsetImport(i) for i in range(model.OpsetImportLength())]
    weights = [graph.Initializers(i) for i in range(graph.InitializersLength())]
    return Contents(
        metadata={p.Key().decode(): p.Value().decode() for p in properties},
        elements=sum(math.prod(w.Dims(i) for i in range(w.DimsLength())) for w in weights),
        opsets={d.Domain().decode() or "ai.onnx": d.Version() for d in domains},
        ir_version=model.IrVersion(),
        operators=Counter(graph.Nodes(i).OpType().decode() for i in range(graph.NodesLength())),
    )

"""What is quantized: a float32 step graph and its companions, from a file or straight from an export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from t2r_export.export import Built
from t2r_export.graph.file import Weight, refer_to_weights
from t2r_export.providers.compile import CONTEXT
from t2r_runtime.errors import UserError
from t2r_runtime.session import existing_file
from t2r_runtime.signature import PREFILL, Signature


@dataclass(frozen=True)
class Source:
    """A float32 step graph, the one for its prompts, and the weights that their initializers name."""

    model: onnx.ModelProto
    signature: Signature
    prompts: Callable[[], onnx.ModelProto | None]  # read when its turn comes
    weights: dict[str, Weight]  # and those that a scheme makes of them
    path: Path | None  # where it can be run, if anywhere


def read_source(path: Path) -> Source:
    """The graph at `path`, and the one for prompts that it names.

    Raises:
        UserError: no graph of ours, or one that is quantized or compiled already.
    """
    model, signature = _read(path)

    def prompts() -> onnx.ModelProto | None:
        if PREFILL not in signature.graphs:
            return None
        return _read(existing_file(path.with_name(signature.graphs[PREFILL]), "the prefill graph"))[0]

    return Source(model, signature, prompts, {}, path)


def source_of(built: Built) -> Source:
    """What an export built, before it is a file."""
    refer_to_weights(built.graph, built.weights)
    prompts = built.others.get(PREFILL)
    if prompts is not None:
        refer_to_weights(prompts, built.weights)
    return Source(built.graph, built.report.signature, lambda: prompts, dict(built.weights), None)


def _read(source: Path) -> tuple[onnx.ModelProto, Signature]:
    try:
        model = onnx.load(source)
    except (DecodeError, ValueError, OSError) as error:
        raise UserError(f"an ONNX graph in {source}", f"{error or 'a damaged file'}", "export it again") from error
    signature = Signature.from_metadata({prop.key: prop.value for prop in model.metadata_props})
    if signature.quantization != "none":
        raise UserError(
            "a float32 graph", f"one that is quantized already, {signature.quantization}", "quantize the float32 export"
        )
    if any(node.op_type == CONTEXT for node in model.graph.node):
        raise UserError("a graph of operators", "one that is compiled", "quantize its source, then compile that")
    return model, signature

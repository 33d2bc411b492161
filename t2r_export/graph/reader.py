"""Read a bundle of graphs from disk.

The runtime's own checks run first, with its messages. In addition, this reads all weights, which the runtime does not
do, and refuses files that do not match the hash in their name and weights that are not finite.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from t2r_export.graph.bundle import Bundle
from t2r_export.graph.releases import ONNXRUNTIME
from t2r_export.graph.trial import any_opset
from t2r_export.graph.weights import placed, values
from t2r_runtime.contract.signature import COMPANIONS, PREFIX, ROLES, Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.outputs import DIGEST
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.session.session import open_graph

CONTEXT = "EPContext"  # the operator that holds a compiled program
PARAMETERS = PREFIX + "parameters"  # informative; not part of the contract
ACTIVE = PREFIX + "active_parameters"  # likewise: parameters read per token, if not all
AGAIN = "export the model again, or copy the files once more"
_NAMED_FOR_CONTENT = re.compile(rf"\.([0-9a-f]{{{DIGEST}}})\.(data|\w+\.onnx)$")


def read_graph(path: str | Path) -> Bundle:
    """Read the step graph at `path` and its companions, after checking that the runtime accepts them and that they are
    complete.

    A compiled graph opens only on its chip, so it is read without being opened.

    Raises:
        UserError: what t2r_runtime.session.session.open_graph raises, and what `read` and `require_whole` do.
    """
    path = existing_file(path, "an ONNX file")
    if not _compiled(path):
        with any_opset():
            opened = open_graph(path, config={"session.disable_prepacking": "1"})
            for companion in opened.companions.values():
                companion()
    bundle = read(path)
    require_whole(bundle, path)
    return bundle


def load(path: Path) -> onnx.ModelProto:
    """The ONNX message at `path`, without external weights.

    Raises:
        UserError: the file is not an ONNX graph.
    """
    existing_graph(path)
    try:
        return onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise UserError(f"an ONNX graph in {path}", f"{error or 'a damaged file'}", "export the model again") from error


def metadata(model: onnx.ModelProto) -> dict[str, str]:
    """The graph's metadata, by key."""
    return {prop.key: prop.value for prop in model.metadata_props}


def programs(model: onnx.ModelProto) -> int:
    """The number of compiled programs (EPContext nodes) in a graph; 0 for a graph of operators."""
    return sum(node.op_type == CONTEXT for node in model.graph.node)


def read(path: Path) -> Bundle:
    """Read the step graph at `path` and its companions. External weights are memory-mapped.

    Raises:
        UserError: the graph is not a t2r graph or is incomplete.
    """
    step = load(path)
    signature = Signature.from_metadata(metadata(step))
    if unknown := sorted(signature.graphs.keys() - ROLES.keys()):
        received = printable(f"a graph with one of the role {unknown[0]}", 100)
        raise UserError(f"companions of the roles {', '.join(COMPANIONS)}", received, "export the model again")
    companions = {
        role: load(existing_file(path.with_name(name), f"the {ROLES[role]}")) for role, name in signature.graphs.items()
    }
    known = {*signature.to_metadata(), ONNXRUNTIME}
    notes = {key: value for key, value in metadata(step).items() if key not in known}
    bundle = Bundle(step, replace(signature, graphs={}), {}, companions, notes)
    for model in bundle.graphs:
        for tensor in model.graph.initializer:
            if tensor.external_data:
                entry = {item.key: item.value for item in tensor.external_data}
                name = " ".join(entry.values())  # one entry for data that is stored once under several names
                bundle.weights[name] = _mapped(tensor, entry, path)
                tensor.CopyFrom(placed(tensor, location=name))
    return bundle


def require_whole(bundle: Bundle, path: Path) -> None:
    """Refuse a bundle whose files do not match the hashes in their names, or whose weights are not finite.

    Raises:
        UserError: names the file or the weight.
    """
    signature = Signature.from_metadata(metadata(bundle.step))
    for name in signature.graphs.values():
        _compare(name, hashlib.sha256(path.with_name(name).read_bytes()).hexdigest())
    mapped = sorted((w for w in bundle.weights.values() if isinstance(w, np.memmap)), key=lambda w: w.offset)
    for file in {weight.filename for weight in mapped}:
        contents = (weight for weight in mapped if weight.filename == file)  # in the order of writing
        digests = (hashlib.sha256(np.ascontiguousarray(weight).data.cast("B")).digest() for weight in contents)
        _compare(Path(str(file)).name, hashlib.sha256(b"".join(digests)).hexdigest())
    for model in bundle.graphs:
        for tensor in model.graph.initializer:
            numbers = values(tensor, bundle.weights)
            if numbers.size and numbers.dtype.kind == "f" and not np.isfinite([numbers.min(), numbers.max()]).all():
                raise UserError(
                    f"finite weights in {path}", f"others in {printable(tensor.name, 100)}", "export the model again"
                )


def _compare(name: str, digest: str) -> None:
    """Refuse a file whose name contains a hash that does not match its content."""
    named = _NAMED_FOR_CONTENT.search(name)
    if named and named[1] != digest[:DIGEST]:
        raise UserError(f"{name} to match the hash in its name", "other content: a damaged file", AGAIN)


def _mapped(tensor: onnx.TensorProto, entry: Mapping[str, str], path: Path) -> np.ndarray:
    """External data of an initializer of the graph at `path`."""
    file = path.with_name(
        Path(entry.get("location", "")).name or path.name
    )  # an untrusted graph must not read other files
    try:
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if kind.hasobject:
            raise ValueError("text instead of numbers")
        return np.memmap(file, kind, "r", int(entry.get("offset", 0)), tuple(tensor.dims))
    except (ArithmeticError, OSError, ValueError, KeyError) as error:
        raise UserError(f"the weights of {path} in {file}", str(error), "export the model again") from error


def _compiled(path: Path) -> bool:
    """Whether the graph contains a compiled program. False for files that are not graphs; the runtime reports those."""
    with contextlib.suppress(DecodeError, ValueError, OSError):
        return programs(onnx.load(path, load_external_data=False)) > 0
    return False

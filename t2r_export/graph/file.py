"""Write a bundle of graphs to disk, one weight at a time.

onnx and onnx-ir build a file in memory before writing it: an export of 512 MB then peaks at 2,326 MB; this writer peaks
at 898 MB, the model plus one tensor. (With external weights both peak there, but importing onnx-ir and converting a
graph to its classes and back takes a sixth of an export's time.) The message is therefore serialized without its
weights, and each weight is appended in protobuf encoding (`_write_inline`).

If several graphs share weights, or above `EXTERNAL_BYTES` (a protobuf message is limited to 2 GiB), the weights go to a
file beside the graph. These files and companion graphs are named by their content, so an existing graph keeps the files
it refers to until the new one replaces it, even if the program is killed.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto, helper

from t2r_export.config.targets import find
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.ort import to_ort
from t2r_export.graph.releases import release_note
from t2r_export.graph.trial import run_once
from t2r_export.graph.weights import Weight, hold, named, parts, placed, size
from t2r_export.paths import refuse_companions
from t2r_runtime.contract.signature import Signature
from t2r_runtime.files import locked, replacing, temporary_beside
from t2r_runtime.outputs import DIGEST, beside

EXTERNAL_BYTES = 1_500_000_000
_SMALL = 1024  # bytes; smaller weights stay in the graph
_LARGE = 1 << 16  # bytes; smaller weights are not page-aligned
_PAGE, _LINE = 4096, 64  # so that a runtime can memory-map a weight, or read it by whole cache lines
_GRAPH_FIELD = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_RAW_DATA_FIELD = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
_INITIALIZER_FIELD = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number


def write(
    bundle: Bundle, out: Path, external_bytes: int = EXTERNAL_BYTES, check: Callable[[Path], None] = lambda _: None
) -> tuple[list[Path], Signature]:
    """Write a bundle without modifying it. `out` appears only once all files are complete.

    Concurrent writers of the same name wait for each other, because each removes files that the other's graph refers
    to.

    Args:
        out: a name ending in .ort selects ONNX Runtime's format and the files that t2r_export.graph.ort writes beside
        it.
        external_bytes: larger weights go to a separate file.
        check: called with the finished .onnx, after a trial run and before it is moved into place; if it raises,
        nothing changes.

    Returns:
        The files, `out` first, and the step's signature, which lists the companions.

    Raises:
        CheckFailed: the trial run fails.
    """
    refuse_companions(out, list(bundle.companions))
    if out.suffix == ".ort":
        with temporary_beside(out, folder=True) as folder:
            _, signature = write(bundle, folder / "graph.onnx", external_bytes, check)
            return to_ort(folder / "graph.onnx", out, find(signature.target).ort_style), signature
    with locked(out, wait=True):
        stood = set(beside(out))
        try:
            files, signature = _write_onnx(bundle, out, external_bytes, check)
        except BaseException:
            for file in set(beside(out)) - stood:
                file.unlink(missing_ok=True)
            raise
        for file in set(beside(out)) - set(files):
            file.unlink()
    return files, signature


def _write_onnx(
    bundle: Bundle, out: Path, external_bytes: int, check: Callable[[Path], None]
) -> tuple[list[Path], Signature]:
    """Write the files: weights first, and last the graph that refers to all others."""
    signature, weights, files = bundle.signature, bundle.weights, [out]
    outside: list[list[TensorProto]] = []
    if bundle.companions or sum(_size(t, weights) for t in bundle.step.graph.initializer) > external_bytes:
        data, outside = _write_data(bundle, out)
        files.append(data)
    for (role, graph), initializers in zip(bundle.companions.items(), outside[1:], strict=True):
        entries = {**signature.companion(role).to_metadata(), **bundle.notes, **release_note(graph)}
        message = _message(graph, entries, initializers)
        made = io.BytesIO()
        _write_inline(made, message, [], weights)
        content = made.getvalue()
        file = out.with_name(f"{out.name}.{hashlib.sha256(content).hexdigest()[:DIGEST]}.{role}.onnx")
        with replacing(file) as part:
            part.write_bytes(content)
        signature = replace(signature, graphs={**signature.graphs, role: file.name})
        files.append(file)
    with replacing(out) as part:
        entries = {**signature.to_metadata(), **bundle.notes, **release_note(bundle.step)}
        _write_step(bundle, entries, outside[0] if outside else [], part)
        run_once(part)
        check(part)
    return files, signature


def write_alone(
    bundle: Bundle, metadata: Mapping[str, str], out: Path, external_bytes: int = EXTERNAL_BYTES
) -> list[Path]:
    """Write the step of a bundle as a graph for another program, with only the given metadata.

    Returns:
        The files: `out`, then the file of weights if they exceed `external_bytes`.
    """
    files, outside = [out], list[TensorProto]()
    if sum(_size(t, bundle.weights) for t in bundle.step.graph.initializer) > external_bytes:
        data, (outside,) = _write_data(replace(bundle, companions={}), out)
        files.append(data)
    with replacing(out) as part:
        _write_step(bundle, metadata, outside, part)
    return files


def _write_step(bundle: Bundle, metadata: Mapping[str, str], outside: Sequence[TensorProto], part: Path) -> None:
    """Write the step graph with the initializers `outside` if given, else with its weights inline."""
    message = _message(bundle.step, metadata, outside)
    with open(part, "wb") as stream:
        _write_inline(stream, message, [] if outside else bundle.step.graph.initializer, bundle.weights)


def _message(
    model: onnx.ModelProto, metadata: Mapping[str, str], initializers: Sequence[TensorProto]
) -> onnx.ModelProto:
    """A copy of `model` with other initializers."""
    graph = helper.make_graph(
        model.graph.node,
        model.graph.name,
        model.graph.input,
        model.graph.output,
        initializers,
        value_info=model.graph.value_info,
    )
    made = helper.make_model(
        graph,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    helper.set_model_props(made, dict(metadata))
    return made


def _write_data(bundle: Bundle, out: Path) -> tuple[Path, list[list[TensorProto]]]:
    """Write the larger weights of all graphs to one file, without duplicates; returns the new initializers of each
    graph."""
    weights = bundle.weights
    contents: dict[bytes, TensorProto] = {}  # keyed by SHA-256
    digests: dict[str, bytes] = {}  # keyed by weight name; each weight is read once
    found: list[list[tuple[TensorProto, bytes]]] = []
    for model in bundle.graphs:
        found.append([])
        for tensor in model.graph.initializer:
            digest, name = b"", named(tensor)
            if _size(tensor, weights) >= _SMALL and (name is not None or tensor.HasField("raw_data")):
                digest = digests.get(name or "") or _sha256(_pieces(tensor, weights))
                contents.setdefault(digest, tensor)
                if name is not None:
                    digests[name] = digest
            found[-1].append((tensor, digest))
    data = out.with_name(f"{out.name}.{hashlib.sha256(b''.join(contents)).hexdigest()[:DIGEST]}.data")
    places = {}
    with replacing(data) as part, open(part, "wb") as file:
        for digest, tensor in contents.items():
            file.write(b"\0" * (-file.tell() % (_PAGE if _size(tensor, weights) >= _LARGE else _LINE)))
            start = file.tell()
            file.writelines(_pieces(tensor, weights))
            places[digest] = {"location": data.name, "offset": start, "length": file.tell() - start}
    return data, [[placed(t, **places[d]) if d else _inside(t, weights) for t, d in tensors] for tensors in found]


def _inside(tensor: TensorProto, weights: Mapping[str, Weight]) -> TensorProto:
    """A copy with its data inline."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    return hold(copy, weights)


def _size(tensor: TensorProto, weights: Mapping[str, Weight]) -> int:
    """Size of an initializer in bytes; approximate if its data is inline."""
    name = named(tensor)
    return int(tensor.ByteSize()) if name is None else size(weights[name])


def _pieces(tensor: TensorProto, weights: Mapping[str, Weight]) -> Iterable[bytes | memoryview]:
    """The data of an initializer as chunks of bytes."""
    name = named(tensor)
    return [tensor.raw_data] if name is None else parts(weights[name])


def _sha256(pieces: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _write_inline(
    file: BinaryIO, message: onnx.ModelProto, initializers: Iterable[TensorProto], weights: Mapping[str, Weight]
) -> None:
    """Write `message` and append the initializers to its graph with inline data, one at a time.

    The graph is the last field, so that a program can read the metadata without an ONNX parser; see
    runtimes/contract/file.md.
    """
    graph = message.graph.SerializeToString()
    message.ClearField("graph")
    heads, total = [], len(graph)
    for tensor in initializers:  # each is a field of the graph: tag and length, then the payload
        name = named(tensor)
        if name is None:
            head, rest = b"", tensor.ByteSize()
        else:
            head = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims).SerializeToString()
            rest = size(weights[name])
            head += _tag(_RAW_DATA_FIELD) + _varint(rest)
        heads.append((_tag(_INITIALIZER_FIELD) + _varint(len(head) + rest) + head, tensor, name))
        total += len(heads[-1][0]) + rest
    file.write(message.SerializeToString() + _tag(_GRAPH_FIELD) + _varint(total) + graph)
    for head, tensor, name in heads:
        file.write(head)
        file.writelines([tensor.SerializeToString()] if name is None else parts(weights[name]))


def _tag(field: int) -> bytes:
    return _varint(field << 3 | 2)  # wire type 2: length-delimited


def _varint(number: int) -> bytes:
    """Base 128, least significant group first, top bit set on all but the last byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

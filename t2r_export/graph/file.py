"""Write a graph with its weights to disk, one weight at a time.

The usual way builds the whole file in memory: the weights stand there three times (model, message, bytes) before the
first byte is written. Here the message is made without its weights, and each is appended in protobuf's own encoding,
so the peak is the model and one tensor more. Past `EXTERNAL_BYTES` the weights go to a file beside the graph, since a
protobuf message ends at 2 GiB.
"""

from __future__ import annotations

import glob
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from t2r_runtime.files import replacing
from t2r_runtime.signature import GENERATE, PREFILL

EXTERNAL_BYTES = 1_500_000_000
DIGEST = 12  # hex digits in the weights' file name
COMPANIONS = {role: f".{role}.onnx" for role in (PREFILL, GENERATE)}  # what other graphs' names end in
# a tensor is stored as float32, several one below the other as one tensor, an array as it is
Weight = Tensor | tuple[Tensor, ...] | np.ndarray
_SMALL = 1024  # bytes; what is less stays in the graph
_ALIGNMENT = 4096  # a page, so that a runtime can map a weight straight from the file
_GRAPH_FIELD = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_RAW_DATA_FIELD = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
_INITIALIZER_FIELD = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number


def write_graph(
    model: onnx.ModelProto,
    weights: Mapping[str, Weight],
    path: str | Path,
    external_bytes: int = EXTERNAL_BYTES,
    others: Mapping[Path, onnx.ModelProto] | None = None,
) -> list[Path]:
    """Write `model` (without its weights) and `weights` as initializers to `path`; float32, little endian.

    Args:
        others: graphs of the same weights, by the path they go to, in the same folder (see `companion`).

    Returns:
        The files written: the graph, the weights' file where they exceed `external_bytes` or several graphs share it,
        and the other graphs.
    """
    path, others = Path(path), others or {}
    if not others and sum(map(_size, weights.values())) <= external_bytes:
        with replacing(path) as part, open(part, "wb") as file:
            _write_message(file, model, [(_inline(name, w), w) for name, w in weights.items()])
        return without_older(path, [path])
    # The weights' file is named for its content: a graph that stood at `path` keeps the file that it refers to
    # until the new graph takes its place, whenever the program is stopped.
    data = path.with_name(f"{path.name}.{_digest(weights)}.data")
    with replacing(data) as part, open(part, "wb") as file:
        initializers = _write_data(file, weights, data.name)
    for place, graph in {**others, path: model}.items():  # last of all the graph that names the others
        read = _read(graph.graph)
        with replacing(place) as part, open(part, "wb") as file:
            _write_message(
                file, graph, [(proto.SerializeToString(), None) for proto in initializers if proto.name in read]
            )
    return without_older(path, [path, data, *others])


def write_whole(model: onnx.ModelProto, path: Path, weights: Mapping[str, Weight]) -> None:
    """Write a model with its weights, inside it or named (`refer`), one at a time; `model` is without them then."""
    messages: list[tuple[bytes, Weight | None]] = []
    for tensor in model.graph.initializer:
        weight = _named(tensor, weights)
        messages.append((tensor.SerializeToString() if weight is None else _inline(tensor.name, weight), weight))
    del model.graph.initializer[:]
    with open(path, "wb") as file:
        _write_message(file, model, messages)


def share_weights(models: Sequence[onnx.ModelProto], path: Path, weights: Mapping[str, Weight]) -> Path:
    """Move the weights of `models`, graphs of one model, to one file beside `path`, to which they then refer.

    What several hold or name is kept once. The file is named for its content; it is written here.
    """
    tensors = [tensor for model in models for tensor in model.graph.initializer]
    contents: dict[bytes, Weight] = {}
    digests: dict[str, bytes] = {}  # by the names of weights, whose bytes are read once
    places = []
    for tensor in tensors:
        weight = _named(tensor, weights)
        content = np.frombuffer(tensor.raw_data, np.uint8) if weight is None else weight
        if _size(content) >= _SMALL:
            digest = digests.get(_name(tensor)) or _sha256(content)
            if weight is not None:
                digests[_name(tensor)] = digest
            contents.setdefault(digest, content)
            places.append((tensor, digest))
        elif weight is not None:
            _hold(tensor, weight)
    data = path.with_name(f"{path.name}.{hashlib.sha256(b''.join(contents)).hexdigest()[:DIGEST]}.data")
    offsets = {}
    with replacing(data) as part, open(part, "wb") as file:
        for digest, content in contents.items():
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            offsets[digest] = file.tell()
            _write_weight(file, content)
    for tensor, digest in places:
        tensor.ClearField("raw_data")
        _refer(tensor, data.name, offsets[digest], _size(contents[digest]))
    return data


def _read(graph: onnx.GraphProto) -> set[str]:
    """Names that nodes read, those of loops inside too. Graphs of one model need not read the same weights."""
    inner = (a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return {name for node in graph.node for name in node.input}.union(*map(_read, inner))


def companion(path: Path, graph: onnx.ModelProto, role: str) -> Path:
    """The path of another graph, of a role in COMPANIONS, that belongs to the one at `path`.

    It is named for its content, as a weights' file is.
    """
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()[:DIGEST]
    return path.with_name(f"{path.name}.{digest}{COMPANIONS[role]}")


def without_older(path: Path, files: list[Path]) -> list[Path]:
    """`files`, once the companions and weights' files of graphs that stood at `path` before are gone."""
    for ending in (".data", *COMPANIONS.values()):
        for old in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * DIGEST}{ending}"):
            if old not in files:
                old.unlink()
    return files


def shape(weight: Weight) -> tuple[int, ...]:
    """The shape of a weight as it is stored."""
    if not isinstance(weight, tuple):
        return tuple(weight.shape)
    return (sum(map(len, weight)), *weight[0].shape[1:])


def array(weight: Weight) -> np.ndarray:
    """The weight as it is stored, in memory; no copy of one that is stored as it is."""
    if isinstance(weight, np.ndarray):
        return weight
    parts = [np.frombuffer(part, "<f4") for part in _bytes(weight)]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(shape(weight))


def refer(name: str, weight: Weight) -> TensorProto:
    """An initializer that names its weight and holds no numbers, for `values`, `fill` and what writes."""
    tensor = TensorProto(name=name, data_type=_data_type(weight), dims=shape(weight))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return tensor


def refer_to_weights(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Give `model` an initializer that names it for each of the weights that it reads."""
    read = _read(model.graph)
    model.graph.initializer.extend(refer(name, weight) for name, weight in weights.items() if name in read)


def values(tensor: TensorProto, weights: Mapping[str, Weight]) -> np.ndarray:
    """The numbers of an initializer: those inside it, or those of the weight that it names."""
    weight = _named(tensor, weights)
    return numpy_helper.to_array(tensor) if weight is None else array(weight)


def fill(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Put the numbers of the weights that initializers name into them."""
    for tensor in model.graph.initializer:
        weight = _named(tensor, weights)
        if weight is not None:
            _hold(tensor, weight)


def _hold(tensor: TensorProto, weight: Weight) -> None:
    tensor.raw_data = array(weight).tobytes()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _named(tensor: TensorProto, weights: Mapping[str, Weight]) -> Weight | None:
    """The weight that an initializer names; one that lies in a file has more to say than a name."""
    return weights[_name(tensor)] if len(tensor.external_data) == 1 else None


def _name(tensor: TensorProto) -> str:
    return str(tensor.external_data[0].value) if tensor.external_data else ""


def _data_type(weight: Weight) -> int:
    number = helper.np_dtype_to_tensor_dtype(weight.dtype) if isinstance(weight, np.ndarray) else TensorProto.FLOAT
    return int(number)


def _size(weight: Weight) -> int:
    """Bytes."""
    return weight.nbytes if isinstance(weight, np.ndarray) else 4 * math.prod(shape(weight))


def _bytes(weight: Weight) -> Iterator[memoryview]:
    """The weight's bytes, a part at a time."""
    if isinstance(weight, np.ndarray):
        yield np.ascontiguousarray(weight, weight.dtype.newbyteorder("<")).data
        return
    for part in weight if isinstance(weight, tuple) else (weight,):
        array = np.ascontiguousarray(part.detach().float().cpu().numpy())
        yield array.astype("<f4", copy=False).data


def _write_weight(file: BinaryIO, weight: Weight) -> None:
    for part in _bytes(weight):
        file.write(part)


def _sha256(weight: Weight) -> bytes:
    digest = hashlib.sha256()
    for part in _bytes(weight):
        digest.update(part)
    return digest.digest()


def _digest(weights: Mapping[str, Weight]) -> str:
    digest = hashlib.sha256()
    for name, weight in weights.items():
        digest.update(name.encode())
        for part in _bytes(weight):
            digest.update(part)
    digits: str = digest.hexdigest()
    return digits[:DIGEST]


def _inline(name: str, weight: Weight) -> bytes:
    """The tensor's message up to its raw bytes, which follow."""
    proto = TensorProto(name=name, data_type=_data_type(weight), dims=shape(weight))
    head: bytes = proto.SerializeToString()
    return head + _tag(_RAW_DATA_FIELD) + _varint(_size(weight))


def _write_data(file: BinaryIO, weights: Mapping[str, Weight], location: str) -> list[TensorProto]:
    """Write the weights one after another and return the initializers that point to them."""
    protos = []
    for name, weight in weights.items():
        file.write(b"\0" * (-file.tell() % _ALIGNMENT))
        proto = TensorProto(name=name, data_type=_data_type(weight), dims=shape(weight))
        _refer(proto, location, file.tell(), _size(weight))
        _write_weight(file, weight)
        protos.append(proto)
    return protos


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("external_data")
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _write_message(file: BinaryIO, model: onnx.ModelProto, initializers: list[tuple[bytes, Weight | None]]) -> None:
    """The model's message with these initializers: each a message, or its head and the weight whose bytes end it."""
    graph = model.graph.SerializeToString()
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    shell.ClearField("graph")
    total, prefixes = len(graph), []
    for head, weight in initializers:
        size = len(head) + (0 if weight is None else _size(weight))
        prefixes.append(_tag(_INITIALIZER_FIELD) + _varint(size) + head)
        total += len(prefixes[-1]) - len(head) + size
    file.write(shell.SerializeToString())
    file.write(_tag(_GRAPH_FIELD) + _varint(total) + graph)
    for prefix, (_, weight) in zip(prefixes, initializers, strict=True):
        file.write(prefix)
        if weight is not None:
            _write_weight(file, weight)


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

"""Copies rows of tensors in the memory of their device.

On the CPU numpy copies them in place. On CUDA an ONNX graph of Gather and Concat does, serialized here without the onnx
package. WebGPU memory belongs to one session, so rows are copied through the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.threads import once

if TYPE_CHECKING:
    import onnxruntime as ort

Rows = NDArray[np.int64]
PROVIDERS = {"cuda": "CUDAExecutionProvider"}  # by device
ELEMENTS = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}  # TensorProto.DataType
IR_VERSION, OPSET = 8, 13


def row_numbers(rows: ArrayLike, batch: int) -> NDArray[np.int64]:
    """Check row indices of a batch → int64 (N,).

    Raises:
        UserError: no rows, not integers, or out of range.
    """
    array = array_of(rows, "rows", "batch")
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= batch:
        expected = f"rows (N,) of a batch, integers in 0 … {batch - 1}"
        raise UserError(expected, printable(array.tolist()), "choose rows to keep", "batch")
    return array.astype(np.int64)


def gather_rows(parts: Sequence[tuple[ort.OrtValue, Rows]], out: ort.OrtValue, dtype: str, device: str) -> None:
    """Concatenate rows (first axis) of tensors into `out`, which is not one of them.

    Args:
        parts: tensors of `dtype` on `device`, each with row indices, which may repeat.
        out: of the tensors' shape, with as many rows as indices.
    """
    if device in PROVIDERS:
        on_device(parts, out, session(dtype, len(parts), PROVIDERS[device]))
        return
    whole = np.empty(tuple(out.shape()), dtype) if device != "cpu" else out.numpy()
    first = 0
    for value, rows in parts:
        # rows are in range; modes other than clip copy `out` first
        np.take(value.numpy(), rows, axis=0, out=whole[first : first + len(rows)], mode="clip")
        first += len(rows)
    if device != "cpu":
        out.update_inplace(whole)


def on_device(parts: Sequence[tuple[ort.OrtValue, Rows]], out: ort.OrtValue, graph: ort.InferenceSession) -> None:
    """`gather_rows` with a `session` for that number of parts."""
    binding = graph.io_binding()
    for i, (value, rows) in enumerate(parts):
        binding.bind_ortvalue_input(f"x{i}", value)
        binding.bind_cpu_input(f"rows{i}", rows)
    binding.bind_ortvalue_output("y", out)
    graph.run_with_iobinding(binding)


@once
def session(dtype: str, parts: int, provider: str) -> ort.InferenceSession:
    """A graph that concatenates rows of tensors of `dtype`: y = Concat(Gather(x0, rows0), Gather(x1, rows1), …)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(_graph(dtype, parts), options, providers=[provider])


def _graph(dtype: str, parts: int) -> bytes:
    """Serialize an ONNX ModelProto; numbers are field numbers of onnx.proto."""
    taken = [f"y{i}" for i in range(parts)] if parts > 1 else ["y"]
    nodes = [_node("Gather", [f"x{i}", f"rows{i}"], y) for i, y in enumerate(taken)]
    if parts > 1:
        axis = _message((1, b"axis"), (3, 0), (20, 2))  # name, i, type: an integer
        nodes.append(_node("Concat", taken, "y") + _message((5, axis)))
    inputs = [_value(f"x{i}", ELEMENTS[dtype]) for i in range(parts)]
    inputs += [_value(f"rows{i}", ELEMENTS["int64"]) for i in range(parts)]
    graph = [
        *((1, node) for node in nodes),
        (2, b"rows"),
        *((11, x) for x in inputs),
        (12, _value("y", ELEMENTS[dtype])),
    ]
    return _message((1, IR_VERSION), (8, _message((1, b""), (2, OPSET))), (7, _message(*graph)))


def _node(operator: str, inputs: Sequence[str], output: str) -> bytes:
    return _message(*((1, name.encode()) for name in inputs), (2, output.encode()), (4, operator.encode()))


def _value(name: str, element: int) -> bytes:
    """A tensor of any shape."""
    return _message((1, name.encode()), (2, _message((1, _message((1, element))))))


def _message(*fields: tuple[int, Any]) -> bytes:
    """Serialize a protobuf message of integer and bytes fields."""
    out = b""
    for number, content in fields:
        if isinstance(content, int):
            out += _integer(number << 3) + _integer(content)
        else:
            out += _integer(number << 3 | 2) + _integer(len(content)) + content
    return out


def _integer(value: int) -> bytes:
    """A protobuf varint."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])

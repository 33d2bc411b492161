"""Rows of tensors, copied where the tensors lie.

In main memory numpy copies them, on the tensors themselves. A device's memory is not the host's to index, so there a
graph of Gather and Concat does it; it is a few dozen bytes, written here without the onnx package. Memory that belongs
to one session (WebGPU) no other one reads: there rows go through the host.
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
PROVIDERS = {"cuda": "CUDAExecutionProvider"}  # by device: who runs the graph there
ELEMENTS = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}  # ONNX's numbers of dtypes
IR_VERSION, OPSET = 8, 13


def row_numbers(rows: ArrayLike, batch: int) -> NDArray[np.int64]:
    """Check rows of a batch → int64 (N,).

    Raises:
        UserError: none, no integers, or others than the batch has.
    """
    array = array_of(rows, "rows", "batch")
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= batch:
        shown = printable(array.tolist())
        raise UserError(
            f"rows (N,) of a batch, integers in 0 … {batch - 1}", shown, "name those to go on with", "batch"
        )
    return array.astype(np.int64)


def gather_rows(parts: Sequence[tuple[ort.OrtValue, Rows]], out: ort.OrtValue, dtype: str, device: str) -> None:
    """Copy rows of the first axis, those of one tensor below those of another, into `out`, which is none of them.

    Args:
        parts: tensors of `dtype` on `device`, and which of their rows; they may repeat.
        out: as many rows as are taken, otherwise of the tensors' shape.
    """
    if device in PROVIDERS:
        on_device(parts, out, session(dtype, len(parts), PROVIDERS[device]))
        return
    whole = np.empty(tuple(out.shape()), dtype) if device != "cpu" else out.numpy()
    first = 0
    for value, rows in parts:
        # rows are in range; any other mode than clip would write to a copy of `out` first
        np.take(value.numpy(), rows, axis=0, out=whole[first : first + len(rows)], mode="clip")
        first += len(rows)
    if device != "cpu":
        out.update_inplace(whole)


def on_device(parts: Sequence[tuple[ort.OrtValue, Rows]], out: ort.OrtValue, graph: ort.InferenceSession) -> None:
    """`gather_rows` by a `session` for as many parts."""
    binding = graph.io_binding()
    for i, (value, rows) in enumerate(parts):
        binding.bind_ortvalue_input(f"x{i}", value)
        binding.bind_cpu_input(f"rows{i}", rows)
    binding.bind_ortvalue_output("y", out)
    graph.run_with_iobinding(binding)


@once
def session(dtype: str, parts: int, provider: str) -> ort.InferenceSession:
    """A graph that takes rows of so many tensors of `dtype`: y = Concat(Gather(x0, rows0), Gather(x1, rows1), …)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(_graph(dtype, parts), options, providers=[provider])


def _graph(dtype: str, parts: int) -> bytes:
    """An ONNX ModelProto; the numbers are those of its fields in onnx.proto."""
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
    """Protobuf: of each field its number with the kind of its content, an integer or bytes, and the content."""
    out = b""
    for number, content in fields:
        if isinstance(content, int):
            out += _integer(number << 3) + _integer(content)
        else:
            out += _integer(number << 3 | 2) + _integer(len(content)) + content
    return out


def _integer(value: int) -> bytes:
    """Base 128, least significant digit first; all but the last byte have the top bit set."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])

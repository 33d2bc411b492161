"""External weights of a graph in memory: initializers refer to them by name, and data is read only when it is written.

Graphs stay small messages, several graphs share one set of weights, and no weight is in memory twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:  # torch is not imported: graphs read from disk contain only arrays
    from torch import Tensor

OF_ADAPTERS = "adapters."  # prefix of the names of tables of adapters, which stay float
# tensors are stored as float32, several as one concatenated tensor, arrays unchanged
Weight: TypeAlias = "Tensor | tuple[Tensor, ...] | np.ndarray"


def shape(weight: Weight) -> tuple[int, ...]:
    """The shape of a weight as it is stored."""
    if not isinstance(weight, tuple):
        return tuple(weight.shape)
    return (sum(map(len, weight)), *weight[0].shape[1:])


def size(weight: Weight) -> int:
    """Size in bytes of a weight as stored."""
    return weight.nbytes if isinstance(weight, np.ndarray) else 4 * math.prod(shape(weight))


def parts(weight: Weight) -> Iterator[memoryview]:
    """The data of a weight as stored, little endian, in chunks."""
    if isinstance(weight, np.ndarray):
        yield np.ascontiguousarray(weight, weight.dtype.newbyteorder("<")).data
        return
    for part in weight if isinstance(weight, tuple) else (weight,):
        numbers = np.ascontiguousarray(part.detach().float().cpu().numpy())
        yield numbers.astype("<f4", copy=False).data


def array(weight: Weight) -> np.ndarray:
    """The weight as stored, in memory; not copied if no conversion is needed."""
    if isinstance(weight, np.ndarray):
        return weight
    arrays = [np.frombuffer(part, "<f4") for part in parts(weight)]
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)).reshape(shape(weight))


def refer(name: str, weight: Weight) -> TensorProto:
    """An initializer that refers to its weight and has no data."""
    number = helper.np_dtype_to_tensor_dtype(weight.dtype) if isinstance(weight, np.ndarray) else TensorProto.FLOAT
    return placed(TensorProto(name=name, data_type=int(number), dims=shape(weight)), location=name)


def placed(tensor: TensorProto, **entries: object) -> TensorProto:
    """An initializer like `tensor` with external data."""
    made = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    made.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        made.external_data.add(key=key, value=str(value))
    return made


def named(tensor: TensorProto) -> str | None:
    """The weight that an initializer refers to; None if its data is inline."""
    return str(tensor.external_data[0].value) if tensor.external_data else None


def values(tensor: TensorProto, weights: Mapping[str, Weight]) -> np.ndarray:
    """The data of an initializer, inline or of the weight that it refers to."""
    name = named(tensor)
    return numpy_helper.to_array(tensor) if name is None else array(weights[name])


def fill(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Store the data of referenced weights inline."""
    for tensor in model.graph.initializer:
        hold(tensor, weights)


def hold(tensor: TensorProto, weights: Mapping[str, Weight]) -> TensorProto:
    """The initializer itself, with its data now inline."""
    name = named(tensor)
    if name is not None:
        tensor.raw_data = array(weights[name]).tobytes()
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return tensor

"""The weights of a graph, beside it: its initializers name them, and their numbers are read when they are written.

So a graph is a small message, several graphs share one set of weights, and no weight is in memory twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:  # a graph that is read has arrays alone, and need not wait for torch
    from torch import Tensor

# a tensor is stored as float32, several one below the other as one tensor, an array as it is
Weight: TypeAlias = "Tensor | tuple[Tensor, ...] | np.ndarray"


def shape(weight: Weight) -> tuple[int, ...]:
    """The shape of a weight as it is stored."""
    if not isinstance(weight, tuple):
        return tuple(weight.shape)
    return (sum(map(len, weight)), *weight[0].shape[1:])


def size(weight: Weight) -> int:
    """Bytes of a weight as it is stored."""
    return weight.nbytes if isinstance(weight, np.ndarray) else 4 * math.prod(shape(weight))


def parts(weight: Weight) -> Iterator[memoryview]:
    """The bytes of a weight as it is stored, little endian, a part at a time."""
    if isinstance(weight, np.ndarray):
        yield np.ascontiguousarray(weight, weight.dtype.newbyteorder("<")).data
        return
    for part in weight if isinstance(weight, tuple) else (weight,):
        numbers = np.ascontiguousarray(part.detach().float().cpu().numpy())
        yield numbers.astype("<f4", copy=False).data


def array(weight: Weight) -> np.ndarray:
    """The weight as it is stored, in memory; no copy of one that is stored as it is."""
    if isinstance(weight, np.ndarray):
        return weight
    arrays = [np.frombuffer(part, "<f4") for part in parts(weight)]
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)).reshape(shape(weight))


def refer(name: str, weight: Weight) -> TensorProto:
    """An initializer that names its weight and holds no numbers."""
    number = helper.np_dtype_to_tensor_dtype(weight.dtype) if isinstance(weight, np.ndarray) else TensorProto.FLOAT
    return placed(TensorProto(name=name, data_type=int(number), dims=shape(weight)), location=name)


def placed(tensor: TensorProto, **entries: object) -> TensorProto:
    """An initializer like `tensor` that says where its numbers are instead of holding them."""
    made = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    made.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        made.external_data.add(key=key, value=str(value))
    return made


def named(tensor: TensorProto) -> str | None:
    """The weight that an initializer names; None if it holds its numbers."""
    return str(tensor.external_data[0].value) if tensor.external_data else None


def values(tensor: TensorProto, weights: Mapping[str, Weight]) -> np.ndarray:
    """The numbers of an initializer: those inside it, or those of the weight that it names."""
    name = named(tensor)
    return numpy_helper.to_array(tensor) if name is None else array(weights[name])


def fill(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Put the numbers of the weights that initializers name into them."""
    for tensor in model.graph.initializer:
        hold(tensor, weights)


def hold(tensor: TensorProto, weights: Mapping[str, Weight]) -> TensorProto:
    """The initializer itself, with its numbers inside from now on."""
    name = named(tensor)
    if name is not None:
        tensor.raw_data = array(weights[name]).tobytes()
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return tensor

"""The machine's own limit: how fast it reads memory, and what one token of a graph must read at the least.

A decode step at batch 1 multiplies every weight once, so that it cannot be quicker than reading all of them. The floor
is the bytes of weights and scales plus those of the states, which are read and written, over the bandwidth.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from t2r_runtime.contract.signature import Signature

BUFFER = 1 << 29  # bytes: many times what a cache holds
REPEATS = 5


@dataclass(frozen=True)
class Bandwidth:
    """Streaming read bandwidth, the best that several ways to read reached."""

    threads: int
    bytes_per_second: float
    form: str
    forms: dict[str, float]  # bytes per second of each: median of the repeats


def bandwidth(threads: int, buffer_bytes: int = BUFFER, repeats: int = REPEATS) -> Bandwidth:
    """Read a buffer far larger than the caches in each way, and take the fastest: the machine can do at least that.

    numpy reads a part in each of `threads` threads of its own; torch divides the work itself.
    """
    array = np.ones(buffer_bytes // 4, np.float32)
    tensor, before = torch.from_numpy(array), torch.get_num_threads()
    half = len(array) // 2
    parts = np.array_split(array.view(np.int32), threads)
    torch.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(threads) as pool:
            ways: dict[str, Callable[[], object]] = {
                "numpy max of int32": lambda: list(pool.map(np.max, parts)),
                "torch sum of float32": lambda: tensor.sum(),
                "torch dot of float32": lambda: torch.dot(tensor[:half], tensor[half : 2 * half]),
            }
            forms = {name: array.nbytes / statistics.median(_times(way, repeats)) for name, way in ways.items()}
    finally:
        torch.set_num_threads(before)
    best = max(forms, key=lambda name: forms[name])
    return Bandwidth(threads, forms[best], best, forms)


def _times(way: Callable[[], object], repeats: int) -> Iterator[float]:
    way()
    for _ in range(repeats):
        start = time.perf_counter()
        way()
        yield time.perf_counter() - start


@dataclass(frozen=True)
class TokenBytes:
    """What one token of a graph must read and write."""

    weights: int  # with scales and zero points; of a table of tokens, one row a sequence
    states: int  # read and written: twice their size

    @property
    def total(self) -> int:
        return self.weights + self.states

    def floor(self, bytes_per_second: float) -> float:
        """Seconds."""
        return self.total / bytes_per_second


def token_bytes(path: Path, batch: int = 1) -> TokenBytes:
    """Of the step graph at `path`, whose states all have constant size."""
    model = onnx.load(path, load_external_data=False)
    signature = Signature.from_metadata({prop.key: prop.value for prop in model.metadata_props})
    gathered, whole = _uses(model.graph)
    weights = 0
    for tensor in model.graph.initializer:
        size = tensor_bytes(tensor)
        if tensor.name in whole:
            weights += size
        elif tensor.name in gathered and tensor.dims:
            weights += batch * size // max(1, tensor.dims[0])
    return TokenBytes(weights, 2 * sum(spec.bytes(batch) for spec in signature.states))


def _uses(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Names that are looked up row by row, and names that a node reads whole; of nested graphs too."""
    gathered: set[str] = set()
    whole: set[str] = set()
    for node in graph.node:
        table = node.op_type == "Gather" and all(a.name != "axis" or a.i == 0 for a in node.attribute)
        gathered.update(node.input[:1] if table else [])
        whole.update(node.input[1:] if table else node.input)
        for attribute in node.attribute:
            for nested in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                inner_gathered, inner_whole = _uses(nested)
                gathered |= inner_gathered
                whole |= inner_whole
    return gathered, whole


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's numbers, two of four bits to a byte."""
    count: int = math.prod(tensor.dims)
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        return math.ceil(count / 2)
    dtype: np.dtype[np.generic] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return count * dtype.itemsize

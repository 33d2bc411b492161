"""Memory bandwidth of the machine, and the memory traffic of one decode step.

A step at batch 1 reads every weight once, so reading time bounds step time from below. The floor is the bytes of
weights and scales, plus those of the states read and written, over the bandwidth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from t2r_export.quantizers.base import tensor_bytes
from t2r_runtime.contract.signature import Signature

BUFFER = 1 << 29  # bytes; many times the size of a cache
REPEATS = 5


@dataclass(frozen=True)
class Bandwidth:
    """Streaming read bandwidth: the fastest of several ways to read."""

    threads: int
    bytes_per_second: float
    form: str
    forms: dict[str, float]  # bytes per second of each way, median over repeats


def bandwidth(threads: int, buffer_bytes: int = BUFFER, repeats: int = REPEATS) -> Bandwidth:
    """Time reading a buffer larger than the caches in several ways, and return the fastest.

    NumPy reads one part in each of `threads` threads; torch uses its own thread pool.
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
    """Bytes that one step of a graph reads and writes."""

    weights: int  # with scales and zero points; of an embedding table, one row per sequence
    states: int  # read and written: twice their size; of growing caches, the rows that are read

    @property
    def total(self) -> int:
        return self.weights + self.states

    def floor(self, bytes_per_second: float) -> float:
        """Lower bound of the step time, in seconds."""
        return self.total / bytes_per_second


def token_bytes(path: Path, batch: int = 1, context: int = 0) -> TokenBytes:
    """Memory traffic of the step graph at `path` after `context` tokens."""
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
    states = sum((1 if spec.grows else 2) * spec.bytes(batch, context) for spec in signature.states)
    return TokenBytes(weights, states)


def _uses(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Names of tensors read by row look-up, and of tensors read whole, nested graphs included."""
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

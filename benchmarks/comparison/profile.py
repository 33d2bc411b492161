"""Profile of a step by operator and by weight, from ONNX Runtime's profiler.

The profiler's overhead per node is as large as a small node. Steps are also timed without it, and the excess is
subtracted equally from all nodes, so that the columns add up to the step.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from comparison.bandwidth import bandwidth
from comparison.decode import make_all
from comparison.engines import parse
from comparison.tables import PROFILE
from comparison.timing import machine
from t2r_export.quantizers.base import tensor_bytes
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError
from t2r_runtime.session.interface import first_feeds

WARM = 10  # warm-up steps
KERNEL = "_kernel_time"  # suffix of node times in the profile
PRODUCTS = ("MatMulNBits", "Gemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedGemm")


@dataclass(frozen=True)
class Share:
    """Nodes of one kind."""

    name: str
    nodes: int
    microseconds: float  # per step, over all nodes
    bytes: int = 0  # of weights and scales read


def bench_profile(
    size: str, engines: Sequence[str], threads: int, steps: int = 100, note: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """Profile t2r graphs at batch 1; returns plain data.

    Raises:
        UserError: another engine. CheckFailed: a graph fails parity.
    """
    candidates = [parse(text) for text in engines]
    for candidate in candidates:
        if candidate.engine != "t2r":
            raise UserError("graphs of t2r to profile", candidate.name, "leave that one out")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        files = make_all(candidates, size, Path(place), note)
        for candidate in candidates:
            note(f"profiling {candidate.name}")
            rows.append({"name": candidate.name, **profile(files[candidate.name].path, threads, steps)})
    speed = bandwidth(threads)
    return {
        "format": PROFILE,
        "machine": machine(),
        "size": size,
        "threads": threads,
        "bytes_per_second": speed.bytes_per_second,
        "profiles": rows,
    }


def profile(path: Path, threads: int, steps: int) -> dict[str, Any]:
    """Profile of a graph: microseconds per step, and shares by operator and by product, largest first."""
    step = _run(path, threads, steps)
    with tempfile.TemporaryDirectory() as place:
        times = _run_profiled(path, threads, steps, Path(place, "profile"))
    total = sum(statistics.median(values) for values in times.values())
    own = max(0.0, (total - step) / len(times))
    net = {node: statistics.median(values) - own for node, values in times.items()}
    sizes = _bytes_read(path)
    operators = _shares(net, sizes, lambda operator, _: operator)
    products = _shares(
        {node: value for node, value in net.items() if node[0] in PRODUCTS}, sizes, lambda _, name: _kind(name)
    )
    return {
        "step": step,
        "profiler": own,
        "operators": [asdict(share) for share in operators],
        "products": [asdict(share) for share in products],
    }


def _shares(
    times: Mapping[tuple[str, str], float], sizes: Mapping[str, int], kind: Callable[[str, str], str]
) -> list[Share]:
    groups: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for (operator, name), value in times.items():
        groups[kind(operator, name)].append((name, value))
    shares = [
        Share(group, len(found), sum(value for _, value in found), sum(sizes.get(name, 0) for name, _ in found))
        for group, found in groups.items()
    ]
    return sorted(shares, key=lambda share: -share.microseconds)


def _kind(name: str) -> str:
    """`blocks.3.parts.1.down_Q4` → `parts.1.down_Q4`: groups the products of all layers."""
    parts = name.split(".")
    return ".".join(parts[2:]) if parts[0] == "blocks" else name


def _run(path: Path, threads: int, steps: int) -> float:
    """Median microseconds of a step."""
    session, binding = _opened(path, threads, None)
    times = []
    for _ in range(WARM + steps):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[WARM:])


def _run_profiled(path: Path, threads: int, steps: int, prefix: Path) -> dict[tuple[str, str], list[float]]:
    """Microseconds of each step by operator and name of a node."""
    session, binding = _opened(path, threads, prefix)
    for _ in range(WARM + steps):
        session.run_with_iobinding(binding)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(KERNEL):
            times[event["args"]["op_name"], event["name"].removesuffix(KERNEL)].append(event["dur"])
    return {node: values[WARM:] for node, values in times.items()}


def _opened(path: Path, threads: int, prefix: Path | None) -> tuple[ort.InferenceSession, ort.IOBinding]:
    """A CPU session, and a reusable binding of the first step."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if prefix is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    signature = Signature.from_metadata(session.get_modelmeta().custom_metadata_map)
    binding = session.io_binding()
    for name, array in first_feeds(signature).items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return session, binding


def _bytes_read(path: Path) -> dict[str, int]:
    """Bytes of the initializers that each named node reads."""
    graph = onnx.load(path, load_external_data=False).graph
    sizes = {tensor.name: tensor_bytes(tensor) for tensor in graph.initializer}
    return {node.name: sum(sizes.get(name, 0) for name in node.input) for node in graph.node}

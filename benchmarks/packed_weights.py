"""Savings by storing prepacked weights in a file: an experiment for docs/performance.md, not an option.

    python benchmarks/packed_weights.py GRAPH.onnx [--rounds 7]

ONNX Runtime packs weights for its kernels when it opens a graph. It can store packed weights beside an optimized graph
and map them later; such a file only fits one kind of processor and does not name it. Printed: seconds to open the graph
and the packed file, alternating in separate processes, peak memory, and file sizes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import onnxruntime as ort

from t2r_export.python import ARGUMENTS

SMALL = "1024"  # weights up to this many bytes stay in the graph file


def opened(path: Path, **entries: str) -> float:
    """Seconds to open the graph as t2r_runtime does."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_reuse, options.log_severity_level = 1, False, 4
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key}", value)
    if entries:
        options.optimized_model_filepath = str(path.with_name("packed.onnx"))
    start = time.perf_counter()
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return time.perf_counter() - start


def write(graph: Path, folder: Path) -> Path:
    """Write the graph with packed weights to `folder`."""
    for file in graph.parent.glob(f"{graph.name}*"):
        (folder / file.name).symlink_to(file.resolve())
    opened(
        folder / graph.name,
        save_external_prepacked_constant_initializers="1",
        optimized_model_external_initializers_file_name="packed.data",
        optimized_model_external_initializers_min_size_in_bytes=SMALL,
    )
    return folder / "packed.onnx"


def most_memory() -> int:
    """Peak memory of this process in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])


def measured(path: Path) -> tuple[float, int]:
    """Seconds to open the graph in a separate process, and its peak memory in bytes."""
    done = subprocess.run([*ARGUMENTS, __file__, "--open", path], check=True, capture_output=True, text=True)
    seconds, most = done.stdout.split()
    return float(seconds), int(most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--open", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        print(opened(given.graph), most_memory())
        return

    from t2r_export.cli.output import table  # not imported in measured processes
    from t2r_export.providers.bench import turns

    with tempfile.TemporaryDirectory(dir=given.graph.parent) as folder:
        graphs = {"as exported": given.graph, "weights packed": write(given.graph, Path(folder))}
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in graphs}
        for name in turns(list(graphs), given.rounds):
            found[name].append(measured(graphs[name]))
        rows = []
        for name, path in graphs.items():
            seconds, most = (statistics.median(column) for column in zip(*found[name], strict=True))
            files = [path, *path.parent.glob(f"{path.name}.*.data"), *path.parent.glob("packed.data")]
            size = sum(file.stat().st_size for file in files if not file.is_symlink())
            rows.append([name, f"{seconds:.2f}", f"{most / 1e6:.0f}", f"{size / 1e6:.0f}"])
    print(table(rows, ["", "seconds to open", "peak, MB", "files, MB"], markdown=True))


if __name__ == "__main__":
    main()

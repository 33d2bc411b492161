"""Measure: what an export costs, and which of several graphs of one model steps fastest.

A speed is a ratio of medians, from rounds that alternate between the candidates in one run, since the same graph was
seen to drift by tens of per cent over minutes. A graph that fails parity gets no speed. Every result carries the
machine and the versions that it was measured on.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from t2r_export import __version__, checkpoint
from t2r_export.config import ModelConfig, RotaryConfig
from t2r_export.export import ExportConfig, export
from t2r_export.initialize import initialize
from t2r_export.mixer_configs import LinearConfig
from t2r_export.model import Transformer
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.errors import CheckFailed, UserError

# Shapes of well-known models, with random weights: speed and memory do not depend on what the numbers are.
SIZES: dict[str, ModelConfig] = {
    "gpt2-small": ModelConfig(
        vocab_size=50257,
        width=768,
        heads=12,
        kv_heads=12,
        head_size=64,
        ffn_size=3072,
        layers=(LinearConfig(32),) * 12,
        position="learned",
        max_positions=1024,
    ),
    "smollm-135m": ModelConfig(
        vocab_size=49152,
        width=576,
        heads=9,
        kv_heads=3,
        head_size=64,
        ffn_size=1536,
        layers=(LinearConfig(32, positions="drop"),) * 30,
        norm="rms",
        activation="silu",
        gated_ffn=True,
        position="rotary",
        rotary=RotaryConfig(),
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
    ),
}


@dataclass(frozen=True)
class ExportFigures:
    """What one export of a random-weight model cost, as a process of its own: start, loading and all."""

    size: str
    parameters: int
    weight_bytes: int
    seconds: float
    peak_bytes: int  # resident, of the whole process
    file_bytes: int

    @property
    def memory_ratio(self) -> float:
        return self.peak_bytes / self.weight_bytes


@dataclass(frozen=True)
class StepFigures:
    """Step times of one candidate."""

    name: str
    milliseconds: float  # median
    low: float  # 10th percentile
    high: float  # 90th percentile
    ratio: float  # to the first candidate's median


def machine() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    packages = ("torch", "onnx", "onnxruntime", "numpy")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "t2r-export": __version__,
        **{name: version(name) for name in packages},
    }


def random_model(size: str, positions: str | None = None, seed: int = 0) -> Transformer:
    """A model of a known size with random weights.

    Raises:
        UserError: an unknown size; lists the known ones.
    """
    if size not in SIZES:
        raise UserError(f"a size of {', '.join(SIZES)}", repr(size), "choose one of those")
    config = SIZES[size]
    if positions is not None:
        layers = tuple(replace(m, positions=positions) if isinstance(m, LinearConfig) else m for m in config.layers)
        config = replace(config, layers=layers)
    return initialize(config, seed).eval()


def bench_export(sizes: Sequence[str], folder: Path | None = None) -> list[ExportFigures]:
    """Export a random-weight model of each size in a process of its own; seconds and peak memory of that process."""
    figures = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            source, out = Path(place, "model.pt"), Path(place, "out.onnx")
            model = random_model(size)
            parameters = sum(p.numel() for p in model.parameters())
            checkpoint.save(source, model, None, {"origin": f"random weights, {size}"})
            del model
            seconds, peak = _run([sys.executable, "-m", "t2r_export", "export", str(source), str(out)])
            files = [file for file in Path(place).iterdir() if file != source]
            bytes_written = sum(file.stat().st_size for file in files)
            figures.append(ExportFigures(size, parameters, 4 * parameters, seconds, peak, bytes_written))
    return figures


# What `bench_graphs` compares: names of graphs of one model, the first one twice, as a control.
LAYOUTS = {name: ExportConfig(batch=1, state_layout=name.split()[0]) for name in ("layers", "layers again", "packed")}
TARGETS = {
    name: ExportConfig(batch=1, target=name.split()[0])
    for name in ("portable", "portable again", "fused", "standard", "npu")
}
OPSET_SWITCH = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # at 0, ONNX Runtime reads the opset of the target `standard`


def bench_graphs(
    forms: Mapping[str, ExportConfig],
    size: str,
    rounds: int = 30,
    threads: int | None = None,
    folder: Path | None = None,
) -> list[StepFigures]:
    """Step time of several graphs of one model with random weights; each must pass parity first."""
    os.environ.setdefault(OPSET_SWITCH, "0")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source = Path(place, "model.pt")
        checkpoint.save(source, random_model(size, "drop"), None, {"origin": f"random weights, {size}"})
        loaded = checkpoint.load(source)
        decoders: dict[str, Decoder] = {}
        paths: dict[ExportConfig, Path] = {}
        for name, config in forms.items():
            if config not in paths:
                paths[config] = Path(place, f"{len(paths)}.onnx")
                export(loaded, paths[config], config)
                require_parity(loaded, paths[config])
            decoders[name] = Decoder(paths[config], threads=threads)
        return interleaved({name: _stepper(decoder) for name, decoder in decoders.items()}, rounds)


def require_parity(loaded: checkpoint.Checkpoint, path: Path, steps: int = 8) -> None:
    """Refuse to go on with a graph that is not the model.

    Raises:
        CheckFailed: names the check that did not pass.
    """
    report = verify(loaded, path, steps=steps)
    if not report.passed:
        failed = ", ".join(f"{c.name} {c.worst:.1e} > {c.tolerance:.1e}" for c in report.checks if not c.passed)
        raise CheckFailed(f"no speed for {path.name}, which is not the model: {failed or 'another greedy token'}")


def interleaved(
    candidates: dict[str, Callable[[], object]],
    rounds: int,
    calls: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StepFigures]:
    """Time the candidates in turn, in another random order each round; the first call of a turn does not count.

    Returns:
        Median and spread of all counted calls, and the ratio of medians to the first candidate.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for name in order.permutation(list(candidates)):
            candidates[name]()
            for _ in range(calls):
                start = clock()
                candidates[name]()
                times[name].append(1e3 * (clock() - start))
    base = statistics.median(next(iter(times.values())))
    figures = []
    for name, values in times.items():
        low, high = np.percentile(values, [10, 90])
        median = statistics.median(values)
        figures.append(StepFigures(name, median, float(low), float(high), median / base))
    return figures


def _stepper(decoder: Decoder) -> Callable[[], object]:
    ids = np.array([1])
    return lambda: decoder.step(ids)


def _run(command: list[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process that must succeed."""
    start = time.perf_counter()
    child = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        raise CheckFailed(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return seconds, _bytes(usage)


def _bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []

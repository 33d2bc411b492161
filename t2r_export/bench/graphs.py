"""Which of several graphs of one model steps fastest, in one process. A graph that is not the model gets no speed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from t2r_export.bench.sizes import random_model
from t2r_export.bench.timing import StepFigures, interleaved
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.errors import CheckFailed

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
    loaded = as_checkpoint(random_model(size), size)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        decoders: dict[str, Decoder] = {}
        paths: dict[ExportConfig, Path] = {}
        for name, config in forms.items():
            if config not in paths:
                paths[config] = Path(place, f"{len(paths)}.onnx")
                export(loaded, paths[config], config)
                require_parity(loaded, paths[config])
            decoders[name] = Decoder(paths[config], threads=threads)
        return interleaved({name: _stepper(decoder) for name, decoder in decoders.items()}, rounds)


def as_checkpoint(model: Transformer, name: str) -> Checkpoint:
    """A checkpoint that was never a file; `name` stands for its contents."""
    return Checkpoint(model.config, model, None, {}, hashlib.sha256(name.encode()).hexdigest())


def require_parity(loaded: Checkpoint, path: Path, steps: int = 8) -> None:
    """Refuse to go on with a graph that is not the model.

    Raises:
        CheckFailed: names the check that did not pass.
    """
    report = verify(loaded, path, steps=steps)
    if not report.passed:
        failed = ", ".join(f"{c.name} {c.worst:.1e} > {c.tolerance:.1e}" for c in report.checks if not c.passed)
        raise CheckFailed(f"no speed for {path.name}, which is not the model: {failed or 'another greedy token'}")


def _stepper(decoder: Decoder) -> Callable[[], object]:
    ids = np.array([1])
    return lambda: decoder.step(ids)

"""Time of a step and of a prompt with experts: ordinary operators against the nodes of target fused.

    python benchmarks/experts.py [--width 512] [--experts 64] [--size 256] [--top 8] [--layers 2] [--threads 2]

A quarter of OLMoE-1B-7B's width, and of its experts' size, with linear attention and random weights: times depend on
the shape alone. All graphs are open in one process and take turns. Printed, as Markdown, for float32, w8 and w4: bytes
of the files, medians of a step and of a prompt per token with the smallest and the largest round, and their ratios to
the first row.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from t2r_export.checkpoints.checkpoint import Checkpoint, made
from t2r_export.cli.output import parameters, size, table
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.parts import MoEConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.initialize import initialize
from t2r_export.model.parts.base import active_parameters
from t2r_export.providers.bench import machine, turns
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder

FORMS = [(target, scheme) for scheme in ("float32", "w8", "w4") for target in ("portable", "fused")]
VOCABULARY, HEAD_SIZE = 1024, 64
STEPS = 32  # per round, after a prompt


def model(given: argparse.Namespace) -> Checkpoint:
    """A model of these sizes with random weights."""
    config = UniformConfig(
        vocab_size=VOCABULARY,
        width=given.width,
        attention=HeadsConfig(heads=given.width // HEAD_SIZE, kv_heads=given.width // HEAD_SIZE, head_size=HEAD_SIZE),
        layers=(LinearConfig(HEAD_SIZE),) * given.layers,
        feed_forwards=(MoEConfig(experts=given.experts, size=given.size, top=given.top),) * given.layers,
        position="none",
        norm="rms",
    )
    return made(initialize(config.build(), 0), None, {})


def opened(checkpoint: Checkpoint, folder: Path, target: str, scheme: str, threads: int) -> tuple[Decoder, int]:
    """The graph with this target and scheme, and the bytes of its files."""
    path, options = folder / f"{target}-{scheme}.onnx", ExportConfig(target=target, prefill=True)
    if scheme == "float32":
        files = export(checkpoint, path, options).files
    else:
        files = export_quantized(checkpoint, path, options, QuantizeConfig(scheme=scheme))[0].files
    return Decoder(path, threads=threads), sum(file.stat().st_size for file in files)


def timed(decoder: Decoder, prompt: np.ndarray) -> tuple[float, float]:
    """Seconds of a step, the median of a round, and of a prompt per token."""
    decoder.reset()
    start = time.perf_counter()
    decoder.prefill(prompt)
    of_prompt, steps = (time.perf_counter() - start) / len(prompt), []
    for token in prompt[:STEPS]:
        start = time.perf_counter()
        decoder.step([token])
        steps.append(time.perf_counter() - start)
    return statistics.median(steps), of_prompt


def cells(times: list[float], first: list[float]) -> list[str]:
    """Median and range of the rounds in ms, and the ratio to the first form's."""
    low, middle, high = (1e3 * value for value in (min(times), statistics.median(times), max(times)))
    return [f"{middle:.2f} ({low:.2f}-{high:.2f})", f"{statistics.median(times) / statistics.median(first):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"width": 512, "experts": 64, "size": 256, "top": 8, "layers": 2, "prompt": 256, "rounds": 7, "threads": 2}
    for name, usual in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    given = parser.parse_args()
    checkpoint = model(given)
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, given.prompt)
    with tempfile.TemporaryDirectory() as folder:
        graphs = {form: opened(checkpoint, Path(folder), *form, given.threads) for form in FORMS}
        found: dict[tuple[str, str], list[tuple[float, float]]] = {form: [] for form in FORMS}
        for form in [*FORMS, *turns(FORMS, given.rounds)]:
            found[form].append(timed(graphs[form][0], prompt))
    times = {form: list(zip(*rounds[1:], strict=True)) for form, rounds in found.items()}  # the first is a warm-up
    rows = []
    for form, both in times.items():
        columns = [cells(list(own), list(first)) for own, first in zip(both, times[FORMS[0]], strict=True)]
        rows.append([" ".join(form), size(graphs[form][1]), *columns[0], *columns[1]])
    model_of = checkpoint.model
    print(parameters(sum(p.numel() for p in model_of.parameters()), active_parameters(model_of)))
    print(f"{given.experts} experts of {given.size}, {given.top} for a token, width {given.width}: {machine()}")
    print(table(rows, ["", "files", "step, ms", "ratio", "prompt, ms a token", "ratio"], markdown=True))


if __name__ == "__main__":
    main()

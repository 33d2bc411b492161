"""How many of the 729 inputs gpt-nano-sort still sorts once its attention is linear.

    python benchmarks/gpt_nano_sort.py [--steps 300,1500] [--feature-sizes 8,16,32] [--work build/gpt-nano-sort]

The checkpoint continues six digits of 0..2 by the same digits in order. For each feature size: convert all layers,
finetune on the sequences themselves (the last 10 % held out), export, and let the graph sort all 729 in one batch.
Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from t2r_export import checkpoint
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.finetune import finetune
from t2r_export.finetune_config import FinetuneConfig, parse_plan
from t2r_export.mixer_configs import LinearConfig
from t2r_export.recipe import data_folder
from t2r_export.verify import verify
from t2r_runtime import Decoder

DIGITS = 6


def sequences() -> np.ndarray:
    """Every input followed by its answer, int64 (729, 12), in a fixed random order."""
    inputs = np.array(list(itertools.product(range(3), repeat=DIGITS)))
    rows = np.concatenate([inputs, np.sort(inputs, axis=1)], axis=1)
    return np.random.default_rng(0).permutation(rows)


def sorted_inputs(graph: Path) -> int:
    """How many of the 729 the graph continues rightly."""
    rows = sequences()
    decoder = Decoder(graph)
    decoder.reset(batch=len(rows))
    logits = decoder.prefill(rows[:, :DIGITS])
    answers = [logits.argmax(-1)]
    while len(answers) < DIGITS:
        answers.append(decoder.step(answers[-1]).argmax(-1))
    return int((np.stack(answers, axis=1) == rows[:, DIGITS:]).all(axis=1).sum())


def run(feature_size: int, steps: str, work: Path) -> dict[str, object]:
    source = data_folder() / "checkpoints" / "gpt-nano-sort"
    swapped, tuned, graph = (work / f"k{feature_size}.{end}" for end in ("converted.pt", "pt", "onnx"))
    data = work / "sequences.npy"
    np.save(data, sequences())
    loaded = checkpoint.load(source)
    checkpoint.save(swapped, convert(loaded.model, LinearConfig(feature_size)), None, loaded.provenance)
    export(checkpoint.load(swapped), graph)
    untrained = sorted_inputs(graph)
    plan = parse_plan("transfer,distill", steps, "1e-2,3e-3")
    report = finetune(
        FinetuneConfig(swapped, tuned, (data,), plan, source, length=2 * DIGITS - 1, batch=64, device="cpu")
    )
    student = checkpoint.load(tuned)
    export(student, graph)
    return {
        "feature_size": feature_size,
        "sorted_before_finetuning": untrained,
        "sorted": sorted_inputs(graph),
        "tokens": report.tokens,
        "seconds": round(report.seconds, 1),
        "parity": verify(student, graph, steps=256).passed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="300,1500", help="of the stages transfer and distill")
    parser.add_argument("--feature-sizes", default="8,16,32")
    parser.add_argument("--work", type=Path, default=Path("build/gpt-nano-sort"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    results = [run(int(size), options.steps, options.work) for size in options.feature_sizes.split(",")]
    for row in results:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps(results))


if __name__ == "__main__":
    main()

"""Accuracy of gpt-nano-sort on all 729 inputs after conversion to other mixers.

    python benchmarks/gpt_nano_sort.py [--steps 300,1500] [--mixers t2r-k16,elu] [--seeds 0,1,2]

The checkpoint sorts six digits of 0..2. For each mixer and seed: convert all layers, finetune on the sequences (the
last tenth for validation and report), export, and sort all inputs in one batch. Prints a table and a JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from comparison.data import data_folder
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.config.uniform import mixer_from_dict
from t2r_export.convert import convert, provenance
from t2r_export.export import export
from t2r_export.finetune import finetune
from t2r_export.verify import verify
from t2r_runtime import Decoder

DIGITS = 6
# name → mixer config; the head size is 16
MIXERS: dict[str, dict[str, Any]] = {
    "t2r-k8": {"feature_size": 8},
    "t2r-k16": {"feature_size": 16},
    "t2r-k32": {"feature_size": 32},
    "elu": {"feature_size": 16, "feature_map": "elu"},
    "dpfp": {"feature_size": 64, "feature_map": "dpfp"},
    "hedgehog": {"feature_size": 32, "feature_map": "hedgehog"},
    "favor": {"feature_size": 32, "feature_map": "favor"},
    # features, and so φ(q)·z, may be negative: an added eps would not keep it from zero
    "rfa": {"feature_size": 32, "feature_map": "rfa", "guard": {"kind": "clamp", "eps": 1e-2}},
    "gated-fixed": {"feature_size": 16, "update_rule": "gated", "gate": "fixed"},
    "gated-data": {"feature_size": 16, "update_rule": "gated", "gate": "data"},
    "delta": {"feature_size": 16, "update_rule": "delta", "normalizer": "rms_norm"},
    "gated-delta": {"feature_size": 16, "update_rule": "gated_delta", "gate": "data", "normalizer": "rms_norm"},
    "window-6-2": {"kind": "window", "window": 6, "sinks": 2},
}
NOTHING_NEW = ("elu", "dpfp", "favor", "window")  # mixers without parameters for attention transfer


def sequences() -> np.ndarray:
    """All inputs with their answers, int64 (729, 12), in a fixed random order."""
    inputs = np.array(list(itertools.product(range(3), repeat=DIGITS)))
    rows = np.concatenate([inputs, np.sort(inputs, axis=1)], axis=1)
    return np.random.default_rng(0).permutation(rows)


def sorted_inputs(graph: Path) -> int:
    """Number of inputs that the graph sorts correctly."""
    rows = sequences()
    decoder = Decoder(graph)
    decoder.reset(batch=len(rows))
    logits = decoder.prefill(rows[:, :DIGITS])
    answers = [logits.argmax(-1)]
    while len(answers) < DIGITS:
        answers.append(decoder.step(answers[-1]).argmax(-1))
    return int((np.stack(answers, axis=1) == rows[:, DIGITS:]).all(axis=1).sum())


def run(name: str, seed: int, steps: str, work: Path) -> dict[str, object]:
    source = data_folder() / "checkpoints" / "gpt-nano-sort"
    swapped, tuned, graph = (work / f"{name}.{seed}.{end}" for end in ("converted.pt", "pt", "onnx"))
    data = work / "sequences.npy"
    np.save(data, sequences())
    loaded = checkpoint.load(source)
    mixer = mixer_from_dict({"kind": "linear", **MIXERS[name]})
    checkpoint.save(swapped, convert(loaded.model, mixer, seed=seed), None, provenance(loaded))
    export(checkpoint.load(swapped), graph)
    untrained = sorted_inputs(graph)
    if name.startswith(NOTHING_NEW):
        plan = parse_plan("distill", str(sum(int(part) for part in steps.split(","))), "3e-3")
    else:
        plan = parse_plan("transfer,distill", steps, "1e-2,3e-3")
    report = finetune(
        FinetuneConfig(
            model=swapped,
            output=tuned,
            force=True,
            data=(data,),
            plan=plan,
            teacher=source,
            length=2 * DIGITS - 1,
            batch=64,
            seed=seed,
            device="cpu",
        )
    )
    student = checkpoint.load(tuned)
    export(student, graph)
    return {
        "mixer": name,
        "seed": seed,
        "sorted_before_finetuning": untrained,
        "sorted": sorted_inputs(graph),
        "tokens": report.tokens,
        "seconds": round(report.seconds, 1),
        "parity": verify(student, graph, steps=256).passed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="300,1500", help="of the stages transfer and distill")
    parser.add_argument("--mixers", default=",".join(MIXERS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--work", type=Path, default=Path("build/gpt-nano-sort"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    results = []
    for name, seed in itertools.product(options.mixers.split(","), options.seeds.split(",")):
        results.append(run(name, int(seed), options.steps, options.work))
        print("  ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

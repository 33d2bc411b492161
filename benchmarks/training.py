"""Speed and memory of distillation at 106 million parameters of random weights: 30 layers of width 576.

    python benchmarks/training.py --save benchmarks/results/training.json --page docs/finetuning.md

Each run is `t2r finetune --stages distill` in a separate process, 4 windows of 256 tokens per step; forms take turns in
every round. A step's time is that of the last line of the log, memory the process's peak; both are medians over rounds.
Needs a machine that does nothing else, for 15 to 30 minutes a round; each run is noted on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from builds import add_outputs, show
from comparison.data import data_folder
from comparison.sizes import SIZES
from comparison.tables import Table
from t2r_export import python
from t2r_export.api import Model
from t2r_export.checkpoints import checkpoint
from t2r_export.data.vocabulary import byte_tokenizer
from t2r_export.errors import CheckFailed
from t2r_export.model.initialize import initialize

STEPS = 20  # the log has a line every 10 steps; the first ones are a warm-up
WINDOWS, LENGTH = 4, 256
FORMS: dict[str, list[str]] = {
    "float32": ["--precision", "float32"],
    "float32, accumulate=4": ["--precision", "float32", "--optimizer", "adamw:accumulate=4"],
    "bf16": ["--precision", "bf16"],
    "bf16, accumulate=4": ["--precision", "bf16", "--optimizer", "adamw:accumulate=4"],
    "bf16, recompute": ["--precision", "bf16", "--optimizer", "adamw:recompute=true"],
    "bf16, accumulate=4, recompute": ["--precision", "bf16", "--optimizer", "adamw:accumulate=4,recompute=true"],
}


def write_models(folder: Path) -> int:
    """Write teacher.pt and student.pt. Returns the parameters of the student."""
    config = dataclasses.replace(SIZES["smollm-135m"], vocab_size=256).build()
    checkpoint.save(folder / "teacher.pt", initialize(config, seed=0), byte_tokenizer(), {"origin": "random weights"})
    student = Model(checkpoint.load(folder / "teacher.pt")).convert()
    student.save(folder / "student.pt")
    return sum(p.numel() for p in student.checkpoint.model.parameters())


def distilled(folder: Path, form: str, text: Path) -> dict[str, Any]:
    """Train with a form; returns the last log line with a speed."""
    out = folder / "out.pt"
    for path in folder.glob("out.pt*"):
        path.unlink()
    command: list[object] = ["finetune", folder / "student.pt", out, "--teacher", folder / "teacher.pt", "--data", text]
    command += ["--stages", "distill", "--steps", STEPS, "--batch", WINDOWS, "--length", LENGTH]
    command += ["--eval-tokens", LENGTH, "--every", f"validate={STEPS}", *FORMS[form]]
    status, _, error = python.run("-m", "t2r_export", *map(str, command))
    if status:
        raise CheckFailed(error)
    lines = [json.loads(line) for line in out.with_name("out.pt.jsonl").read_text(encoding="utf-8").splitlines()]
    found: dict[str, Any] = [line for line in lines if "tokens_per_second" in line][-1]
    return found


def table(rounds: int, folder: Path, text: Path) -> Table:
    parameters = write_models(folder)
    found: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
    for number in range(rounds):
        for form in random.Random(number).sample(list(FORMS), len(FORMS)):
            line = distilled(folder, form, text)
            found[form].append(line)
            speed = f"{line['tokens_per_second']:,.0f} tokens/s, {line['memory'] / 1e9:.2f} GB"
            print(f"round {number + 1}, {form}: {speed}, loss {line['loss']:.4f}", file=sys.stderr, flush=True)
    first = statistics.median(line["tokens_per_second"] for line in found["float32"])
    rows = []
    for form, lines in found.items():
        speed = statistics.median(line["tokens_per_second"] for line in lines)
        peak = statistics.median(line["memory"] for line in lines)
        rows.append(
            [form, f"{speed:,.0f}", f"{speed / first:.2f}", f"{peak / 1e9:.2f}", f"{peak / parameters / 4:.1f}"]
            + [f"{lines[-1]['loss']:.4f}"]
        )
    return Table("", ["form", "tokens/s", "ratio", "peak memory, GB", "of the weights", "loss"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", type=Path, default=data_folder() / "text" / "tales.txt")
    add_outputs(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        show(table(options.rounds, Path(folder), options.text), options)


if __name__ == "__main__":
    main()

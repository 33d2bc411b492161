"""Recall by state size: associative recall and copying, by mixer and bytes of state.

    python benchmarks/recall.py [--quick] [--work build/recall] [--tasks mqar,copy] [--sizes 1,4,16,64] [--seeds 3]

Two tasks limited by the state:

    mqar  16 key-value pairs, then all keys in another order; predict their values (multi-query associative recall,
          Arora et al. 2023, arXiv 2312.04927; a pair is one token here, to measure the capacity of the state alone)
    copy  16 random symbols, then blanks; repeat the symbols (after Jelassi et al. 2024, arXiv 2402.01032; without
          feeding the symbols back, so that only the position identifies them)

Models have two blocks of one mixer and are trained from random weights on fresh sequences; for copy, sinusoidal
positions are added. The score is the accuracy; chance is 1 in 8. `grows` of a mixer lists the sizes that enlarge its
state; the largest state within the limit is used. Softmax attention is the reference. Sizes without a row need a model
that is too large (weights of an LSTM grow with the square of its state), or are below the smallest state (of a hybrid).

Runs in the work folder's runs.jsonl are not repeated. Writes recall.csv and recall.svg (extra `plot`) there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comparison.tables import Table, write_csv
from comparison.timing import machine
from t2r_export.checkpoints.weights import outline
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import SinusoidalConfig
from t2r_export.config.uniform import UniformConfig, mixer_from_dict
from t2r_export.files import write_bytes
from t2r_export.model.initialize import initialize
from t2r_export.training.drawing import drawing
from t2r_export.training.optimizers import learning_rate, make_optimizer

KEYS, VALUES = 16, 8
IGNORED = -100  # ignore_index of cross_entropy
BATCH, RATE, TESTS = 32, 1e-2, 8  # sequences per step, peak learning rate, test batches
LARGEST = 1_500_000  # maximum parameters
MODEL = UniformConfig(
    vocab_size=KEYS + KEYS * VALUES,
    width=64,
    ffn_size=128,
    layers=(SoftmaxConfig(),) * 2,
    position="none",
    tied_head=False,
    attention=HeadsConfig(heads=2, kv_heads=2, head_size=32),
)


@dataclass(frozen=True)
class Entry:
    """A mixer config, and the sizes that enlarge its state: field of the mixer or model → increment per unit."""

    mixer: dict[str, Any]
    grows: dict[str, int] = field(default_factory=dict)

    def config(self, units: int) -> ModelConfig:
        sizes = {name: number * units for name, number in self.grows.items()}
        model: dict[str, Any] = {name: sizes.pop(name) for name in ("width",) if name in sizes}
        heads: dict[str, Any] = {name: sizes.pop(name) for name in ("head_size",) if name in sizes}
        layers = (mixer_from_dict(self.mixer | sizes),) * len(MODEL.layers)
        return dataclasses.replace(MODEL.with_attention(**heads), layers=layers, **model).build()


ENTRIES = {
    "softmax": Entry({"kind": "softmax"}),
    "window": Entry({"kind": "window", "sinks": 0}, {"window": 1}),
    "linear relu": Entry({"kind": "linear"}, {"feature_size": 1, "head_size": 1}),
    "linear elu": Entry({"kind": "linear", "feature_map": "elu"}, {"feature_size": 1, "head_size": 1}),
    "linear dpfp": Entry({"kind": "linear", "feature_map": "dpfp"}, {"feature_size": 2, "head_size": 1}),
    "linear hedgehog": Entry({"kind": "linear", "feature_map": "hedgehog"}, {"feature_size": 2, "head_size": 1}),
    "linear delta": Entry(
        {"kind": "linear", "feature_map": "elu", "update_rule": "delta", "normalizer": "rms_norm"},
        {"feature_size": 1, "head_size": 1},
    ),
    "linear gated": Entry(
        {"kind": "linear", "update_rule": "gated", "gate": "data"}, {"feature_size": 1, "head_size": 1}
    ),
    "linear gated conv": Entry(
        {"kind": "linear", "update_rule": "gated", "gate": "data", "conv": 4}, {"feature_size": 1, "head_size": 1}
    ),
    "linear relu gated delta": Entry(
        {"kind": "linear", "update_rule": "gated_delta", "gate": "data", "normalizer": "rms_norm"},
        {"feature_size": 1, "head_size": 1},
    ),
    "linear gated delta": Entry(
        {
            "kind": "linear",
            "feature_map": "elu",
            "update_rule": "gated_delta",
            "gate": "data",
            "normalizer": "rms_norm",
        },
        {"feature_size": 1, "head_size": 1},
    ),
    # a token of the window has as many values as two features
    "hybrid": Entry({"kind": "hybrid"}, {"window": 1, "feature_size": 2}),
    "lstm": Entry({"kind": "lstm"}, {"width": 2}),
    "gru": Entry({"kind": "gru"}, {"width": 2}),
}


def mqar(pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """ids and answers (BATCH, 2 · pairs); -100: no answer."""
    keys = torch.rand(BATCH, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (BATCH, pairs), generator=generator)
    order = torch.rand(BATCH, pairs, generator=generator).argsort(1)
    shown = KEYS + keys * VALUES + values  # a token per possible pair
    answers = torch.cat([torch.full_like(values, IGNORED), values.gather(1, order)], 1)
    return torch.cat([shown, keys.gather(1, order)], 1), answers


def copy(length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """ids and answers (BATCH, 2 · length); -100: no answer."""
    row = torch.randint(VALUES, (BATCH, length), generator=generator)
    ignored = torch.full_like(row, IGNORED)
    return torch.cat([row, torch.full_like(row, VALUES)], 1), torch.cat([ignored, row], 1)


TASKS = {"mqar": (mqar, 16), "copy": (copy, 16)}  # function, and number of pairs or symbols
POSITIONS = {"mqar": None, "copy": SinusoidalConfig()}


def state_bytes(config: ModelConfig, length: int) -> int:
    """float32 state bytes of one sequence."""
    return sum(s.bytes(length=length) for s in outline(config).state_spec() if s.dtype == "float32")


def fitting(entry: Entry, limit: int, length: int) -> ModelConfig | None:
    """The model with the largest state of at most `limit` bytes; None if it would exceed LARGEST parameters."""
    units = 1
    while state_bytes(entry.config(2 * units), length) <= limit:
        units *= 2
    for step in (units >> i for i in range(units.bit_length())):
        if state_bytes(entry.config(units + step), length) <= limit:
            units += step
    config = entry.config(units)
    fine = state_bytes(config, length) <= limit and sum(p.numel() for p in outline(config).parameters()) <= LARGEST
    return config if fine else None


def train(config: ModelConfig, task: str, steps: int, seed: int) -> float:
    """Train for `steps`; returns the accuracy."""
    make, size = TASKS[task]
    model, generator = initialize(config, seed), torch.Generator().manual_seed(seed)
    optimizer = make_optimizer(dict(model.named_parameters()), RATE * 64 / config.width, 0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, RATE * 64 / config.width, 0.1)
        ids, answers = make(size, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), answers.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return score(model.eval(), task)


@torch.inference_mode()
def score(model: torch.nn.Module, task: str) -> float:
    make, size = TASKS[task]
    generator, right = torch.Generator().manual_seed(1 << 20), []
    for _ in range(TESTS):
        ids, answers = make(size, generator)
        right.append((model(ids).argmax(-1) == answers)[answers != IGNORED].float().mean())
    return float(torch.stack(right).mean())


def plan(tasks: list[str], mixers: list[str], sizes: list[int], seeds: int) -> list[tuple[str, str, int | None, int]]:
    """Runs as (task, mixer, state in KiB or None, seed), ordered by seed."""
    kinds = [(n, size) for n in mixers for size in (sizes if ENTRIES[n].grows else [None])]
    return [(task, n, size, seed) for seed, task, (n, size) in itertools.product(range(seeds), tasks, kinds)]


def run_all(work: Path, steps: int, wanted: list[tuple[str, str, int | None, int]]) -> list[dict[str, Any]]:
    path = work / "runs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["task"], row["mixer"], row["kb"], row["seed"], row["steps"]) for row in rows}
    for task, name, kb, seed in wanted:
        if (task, name, kb, seed, steps) in done:
            continue
        length = 2 * TASKS[task][1]
        config = ENTRIES[name].config(1) if kb is None else fitting(ENTRIES[name], 1024 * kb, length)
        row: dict[str, Any] = {"task": task, "mixer": name, "kb": kb, "seed": seed, "steps": steps}
        if config is not None:
            config = dataclasses.replace(config, positions=POSITIONS[task])
            began = time.monotonic()
            row |= {"accuracy": round(train(config, task, steps, seed), 4), "bytes": state_bytes(config, length)}
            row["seconds"] = round(time.monotonic() - began, 1)
        rows.append(row)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return [
        row for row in rows if (row["task"], row["mixer"], row["kb"], row["seed"]) in wanted and row["steps"] == steps
    ]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line per task, mixer and size: mean, lowest and highest accuracy over the seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in (row for row in rows if "accuracy" in row):
        groups.setdefault((row["task"], row["mixer"], row["kb"]), []).append(row)
    lines = []
    for (task, name, kb), group in groups.items():
        scores = [row["accuracy"] for row in group]
        spread = {"accuracy": round(statistics.mean(scores), 4), "lowest": min(scores), "highest": max(scores)}
        lines.append({"task": task, "mixer": name, "kb": kb, "bytes": group[0]["bytes"], **spread, "seeds": len(group)})
    return lines


def markdown(lines: list[dict[str, Any]], sizes: list[int]) -> str:
    """A row per mixer, a column per task and size, in percent. Softmax is in the column of the largest size."""
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    columns = [(task, kb) for task in tasks for kb in sizes]
    found = {(line["task"], line["mixer"], line["kb"] or sizes[-1]): line for line in lines}
    head = ["", *(f"{task} {kb} KiB" for task, kb in columns)]
    rows = []
    for name in dict.fromkeys(line["mixer"] for line in lines):
        cells = [found.get((task, name, kb)) for task, kb in columns]
        rows.append([name, *(_percent(line) if line else "-" for line in cells)])
    return Table("", head, rows).markdown()


def _percent(line: dict[str, Any]) -> str:
    spread = f" ({100 * line['lowest']:.0f}-{100 * line['highest']:.0f})" if line["seeds"] > 1 else ""
    return f"{100 * line['accuracy']:.0f}{spread}"


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    with drawing(path, size=(5 * len(tasks), 4.5)) as figure:
        for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            for number, name in enumerate(ENTRIES):
                found = [line for line in lines if (line["task"], line["mixer"]) == (task, name)]
                columns = [[line[key] for line in found] for key in ("bytes", "accuracy", "lowest", "highest")]
                style = "-" if number < 10 else "--"  # there are ten colours
                axes.plot(columns[0], columns[1], style, marker="o", markersize=3, color=f"C{number}", label=name)
                axes.fill_between(columns[0], columns[2], columns[3], color=f"C{number}", alpha=0.15)
            axes.set(xscale="log", xlabel="bytes of state", ylabel="right answers", title=task, ylim=(0, 1.02))
            axes.grid(alpha=0.3)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/recall"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--mixers", default=",".join(ENTRIES))
    parser.add_argument("--sizes", default="1,4,16,64", help="of the state, KiB")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="trial run: one seed, two sizes, few steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    sizes, seeds, steps = [int(size) for size in options.sizes.split(",")], options.seeds, options.steps
    if options.quick:
        sizes, seeds, steps = sizes[:2], 1, 20
    rows = run_all(options.work, steps, plan(options.tasks.split(","), options.mixers.split(","), sizes, seeds))
    lines = summary(rows)
    print(markdown(lines, sizes))
    write_csv(lines, options.work / "recall.csv")
    draw(lines, options.work / "recall.svg")
    write_bytes(options.work / "results.json", json.dumps({"runs": rows, "machine": machine()}, indent=1).encode())


if __name__ == "__main__":
    main()

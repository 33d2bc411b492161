"""BLEU of a translator against hours of training: the curve on models/translator-de-en's card.

    python benchmarks/learning_curve.py build/translator/start.pt build/translator/teacher.pt.jsonl STATE… MODEL.pt
        --pairs build/translator/test.tsv [--save benchmarks/results/NAME.json] [--page PAGE] [--plot CURVE.svg]

A STATE is a copy of the training state (teacher.pt.training), MODEL.pt the final model, START.pt the initial one, the
.jsonl the log. Rows: steps, training tokens, hours (tokens over the log's mean speed, without validations), nats per
token on the pairs, and BLEU of the exported graph with beams of 1 and 4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from builds import add_outputs, show
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.data.pairs import Pair, read_pairs
from t2r_export.quality.evaluate_pairs import evaluate_pairs
from t2r_export.training.drawing import drawing
from translations import BEAMS, bleu_of
from translations import steps as steps_of

HEAD = ["steps", "target tokens", "hours", "nats/token", *(f"BLEU, beam {beam}" for beam in BEAMS)]


@dataclass(frozen=True)
class Point:
    """A model during or after training."""

    steps: int
    tokens: int
    hours: float
    nats: float
    bleu: list[float]  # per beam

    def cells(self) -> list[str]:
        scores = [f"{score:.2f}" for score in self.bleu]
        return [f"{self.steps:,}", f"{self.tokens / 1e6:.1f} M", f"{self.hours:.2f}", f"{self.nats:.3f}", *scores]


def speeds(log: Path) -> list[tuple[int, float]]:
    """Logged steps and tokens per second; steps repeated after a resume replace earlier ones."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return list({row["step"]: row["tokens_per_second"] for row in rows if "tokens_per_second" in row}.items())


def hours(steps: int, tokens: int, log: Sequence[tuple[int, float]]) -> float:
    """Hours for `tokens`; log lines have equal numbers of tokens, so the mean speed is harmonic."""
    return tokens / statistics.harmonic_mean([speed for step, speed in log if step <= steps]) / 3600


def reached(start: Path, file: Path) -> tuple[Checkpoint, int, int]:
    """Load a training state or a model.pt; returns it with its steps and tokens."""
    if file.suffix == ".pt":
        loaded = checkpoint.load(file)
        (run,) = loaded.provenance["finetune"]
        return loaded, steps_of(loaded), run["tokens"]
    loaded, state = checkpoint.load(start), torch.load(file, map_location="cpu", weights_only=True)
    loaded.model.load_state_dict(state["weights"])
    return loaded, state["step"], state["tokens"]


def point(start: Path, file: Path, log: Sequence[tuple[int, float]], pairs: Sequence[Pair]) -> Point:
    """Evaluate the model of a file on the pairs."""
    loaded, steps, tokens = reached(start, file)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "model.pt"
        checkpoint.save(whole, loaded.model, loaded.tokenizer, dict(loaded.provenance))
        text = evaluate_pairs(whole, pairs).text
    assert text is not None
    scores = [found.score for found in bleu_of(loaded, pairs)]
    return Point(steps, tokens, hours(steps, tokens, log), text.nats, scores)


def draw(points: Sequence[Point], path: Path) -> None:
    with drawing(path, size=(7, 4)) as figure:
        axes = figure.subplots()
        for place, beam in enumerate(BEAMS):
            scores = [one.bleu[place] for one in points]
            axes.plot([one.hours for one in points], scores, "o-", label=f"beam {beam}")
        axes.set(xlabel="hours of training on one core", ylabel="BLEU", xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--pairs", type=Path, required=True)
    add_outputs(parser)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    log, pairs = speeds(options.log), read_pairs(options.pairs)
    points = [point(options.start, file, log, pairs) for file in options.files]
    points.sort(key=lambda one: one.steps)
    show(Table("", HEAD, [one.cells() for one in points]), options)
    if options.plot:
        draw(points, options.plot)


if __name__ == "__main__":
    main()

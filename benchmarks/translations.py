"""Quality of the translators of a build: the table of students in docs/translation.md.

    python benchmarks/translations.py build/translator [MORE …] [--save benchmarks/results/NAME.json]
        [--page docs/translation.md]

A build is a folder written by `t2r build` from a recipe of pairs; several builds share the first one's teacher. Rows
for teacher and students: nats per token and BLEU (beams of 1 and 4, exported graph) on the test part, state size per
hypothesis and its part for the source, steps and seconds of training (not recorded for the teacher). The signature of
sacrebleu is printed below. `--save` writes the cells, and `--page` fills the table at
`<!-- table NAME.json students -->`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from builds import add_outputs, show
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.data.pairs import Pair, read_pairs
from t2r_export.export import export, read_by_beam
from t2r_export.quality.evaluate_pairs import Bleu, evaluate_pairs
from t2r_runtime.contract.state_spec import SOURCE_LENGTH, StateSpec

BEAMS = (1, 4)
HEAD = ["model", "nats/token", *(f"BLEU, beam {beam}" for beam in BEAMS), "state, kB", "of it the source"]


def bleu_of(loaded: Checkpoint, pairs: Sequence[Pair]) -> list[Bleu]:
    """BLEU of a checkpoint's graph on pairs, per beam."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, max(BEAMS))))
        found = [evaluate_pairs(graph, pairs, bleu=True, beam=beam).bleu for beam in BEAMS]
    return [bleu for bleu in found if bleu is not None]


def kilobytes(states: Iterable[StateSpec]) -> str:
    """State size of a hypothesis, or what it grows with."""
    states = list(states)
    grown = {
        "target": any(spec.grows for spec in states),
        "source": any(SOURCE_LENGTH in spec.shape for spec in states),
    }
    if any(grown.values()):
        return "grows with " + " and ".join(name for name, grows in grown.items() if grows)
    return f"{sum(spec.bytes() for spec in states) / 1e3:.1f}"


def steps(loaded: Checkpoint) -> int:
    """Training steps of a checkpoint over all stages, without its teacher's."""
    return sum(stage["steps"] for stage in loaded.provenance["finetune"][-1]["stages"])


def line(name: str, model: Path, pairs: Sequence[Pair], seconds: float | None) -> tuple[list[str], list[Bleu]]:
    """The cells of a translator, and its BLEU scores."""
    loaded = checkpoint.load(model)
    text, found, states = evaluate_pairs(model, pairs).text, bleu_of(loaded, pairs), loaded.model.state_spec()
    assert text is not None
    source = [spec for spec in states if spec.constant]
    bleus = [f"{bleu.score:.2f}" for bleu in found]
    cells = [name, f"{text.nats:.3f}", *bleus, kilobytes(states), kilobytes(source) if source else "0"]
    return [*cells, f"{steps(loaded):,}", "-" if seconds is None else f"{seconds:,.0f}"], found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=Path, nargs="+")
    add_outputs(parser)
    options = parser.parse_args()
    first: Path = options.builds[0]
    pairs = read_pairs(first / "test.tsv")
    models: list[tuple[str, Path, float | None]] = [("softmax teacher", first / "teacher.pt", None)]
    for work in options.builds:
        results = json.loads((work / "results.json").read_text(encoding="utf-8"))
        models += [(row["name"], work / row["path"], row["seconds"]) for row in results]
    rows, bleus = zip(*(line(name, path, pairs, seconds) for name, path, seconds in models), strict=True)
    show(Table("", [*HEAD, "steps", "seconds"], list(rows)), options)
    for bleu in bleus[0]:
        print(f"beam {bleu.beam}: {bleu.sentences:,} sentences, {bleu.signature}")


if __name__ == "__main__":
    main()

"""Table of the students of builds: tables of docs/quality.md and docs/record.md.

    python benchmarks/builds.py build/mixers build/hybrids [--sort nats|bytes] [--lengths 256,512,2048]
        [--text TEXT…] [--also TEXT…] [--eval-tokens N] [--reach N] [--weights] [--untrained NAME,…]
        [--windows 8,60+4,…] [--step-times] [--plot students.svg] [--save benchmarks/results/NAME.json]
        [--page docs/quality.md]

A build is a folder written by `t2r build`; without one the table has the teacher and its windows. A row per student:
nats per token above the teacher (from results.json), state bytes per sequence, tokens of training. Names ending in -s1,
-s2, … are seeds of one student; their row has the mean and, in brackets, the range.

`--lengths` evaluates nats per token in windows of each length, with those of the last quarter in brackets, on the test
part of `--text` or `--eval-tokens` of it; with 256 among them, nats above the teacher are measured instead of read,
with the paired standard error of the difference over windows, and `--also` adds a column of them per further text.
`--reach` is the longest window in which the teacher is measured. `--weights` adds the bytes of weights, `--untrained`
students before training, `--windows` the teacher with untrained windows and sinks in all layers. `--step-times` adds
milliseconds of a step of each student's graph on one thread, medians of rounds in turn: on a machine that does nothing
else. `--plot` draws nats against state bytes (growing states after 256 tokens).
`--save` writes the cells, and `--page` fills the table at `<!-- table NAME.json students -->` of a
page; a test compares both.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comparison.data import data_folder
from comparison.page import PLACE
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.bench import BenchConfig
from t2r_export.config.mixers import WindowConfig
from t2r_export.convert import convert
from t2r_export.data.corpus import held_out_windows, read_corpus, windows_of
from t2r_export.export import export
from t2r_export.providers.bench import bench
from t2r_export.quality.evaluate import evaluate_lengths, token_losses
from t2r_export.training.drawing import drawing

TRAINED = 256  # window length of all recipes
SEED = re.compile(r"-s\d+$")
UNTRAINED = ", untrained"


@dataclass
class Line:
    """A student with all its seeds."""

    name: str
    gaps: list[float]  # nats per token above the teacher, per seed
    bytes: int  # state bytes per sequence after a window
    grows: bool
    tokens: int
    lengths: list[tuple[float, float]]  # nats, and nats in the last quarter
    above: list[list[Tensor]]  # nats per token above the teacher in each window (N,), per text and seed; none if read
    weights: int | None  # bytes of its weights, if requested
    model: Checkpoint  # that of the first seed
    milliseconds: float | None = None  # of a step, once measured

    @property
    def gap(self) -> float:
        return statistics.mean(self.gaps)

    def cells(self) -> list[str]:
        spread = f" ({min(self.gaps):+.3f} to {max(self.gaps):+.3f})" if len(self.gaps) > 1 else ""
        above = [_paired(seeds) for seeds in self.above] or [f"{self.gap:+.3f}"]
        size = f"{self.bytes:,}{', grows' if self.grows else ''}"
        trained = f"{self.tokens / 1e6:.1f} M" if self.tokens else "none"
        weights = [] if self.weights is None else [f"{self.weights:,}"]
        step = [] if self.milliseconds is None else [f"{self.milliseconds:.3f}"]
        lengths = map(_nats, self.lengths)
        return [self.name, above[0] + spread, *above[1:], size, *weights, trained, *step, *lengths]


@dataclass(frozen=True)
class Reading:
    """Texts and lengths of the evaluation, and the teacher's figures."""

    texts: list[Path]
    most: int  # tokens at each length; 0: all
    lengths: list[int]
    teacher: Checkpoint
    weights: bool = False  # whether to report bytes of weights
    also: tuple[Path, ...] = ()  # further texts, each with a column of nats above the teacher
    reach: int = 0  # longest window of the teacher; 0: any

    @functools.cached_property
    def own(self) -> list[tuple[float, float]]:
        """The teacher's nats, at the lengths within its reach."""
        return self.nats(self.teacher, [length for length in self.lengths if length <= (self.reach or length)])

    @functools.cached_property
    def windows(self) -> list[tuple[Tensor, Tensor]]:
        """Of each text the windows of TRAINED tokens, and the teacher's losses in them."""
        found = []
        for texts in (self.texts, *([text] for text in self.also)):
            tokens = read_corpus(texts, self.teacher.tokenizer, self.teacher.config).test
            windows = held_out_windows(tokens, TRAINED, windows_of(self.most, TRAINED))
            found.append((windows, token_losses(self.teacher.model, windows)))
        return found

    def above(self, loaded: Checkpoint) -> list[Tensor]:
        """Of each text the nats per token above the teacher in each window (N,); empty if TRAINED is not measured."""
        if TRAINED not in self.lengths:
            return []
        return [(token_losses(loaded.model, windows) - losses).mean(1) for windows, losses in self.windows]

    def nats(self, loaded: Checkpoint, lengths: list[int]) -> list[tuple[float, float]]:
        """Nats per token at each length, and those of the last quarter of the windows."""
        if not lengths:
            return []
        tokens = read_corpus(self.texts, loaded.tokenizer, loaded.config).test
        return [(e.nats, e.end_nats) for e in evaluate_lengths(loaded.model, tokens, lengths, most=self.most)]


def add_lines(
    found: dict[str, Line], work: Path, untrained: list[str], reading: Reading, only: Sequence[str] = ()
) -> dict[str, Line]:
    """Add a line per student of a build, or of `only`, to `found`; seeds of a student share a line."""
    results: list[dict[str, Any]] = json.loads((work / "results.json").read_text(encoding="utf-8"))
    for row in results:
        if only and SEED.sub("", row["name"]) not in (*only, *untrained):
            continue
        gap, loaded = row["student_nats"] - row["teacher_nats"], checkpoint.load(work / row["path"])
        line = _line(SEED.sub("", row["name"]), loaded, reading, gap, row["tokens"])
        if line.name in found:
            found[line.name].gaps += line.gaps
            found[line.name].above = [a + b for a, b in zip(found[line.name].above, line.above, strict=True)]
        else:
            found[line.name] = line
    for name in untrained:
        start = work / f"{name}.converted.pt"
        if start.exists():
            loaded = checkpoint.load(start)
            gap = reading.nats(loaded, [TRAINED])[0][0] - results[0]["teacher_nats"]
            found[f"{name}{UNTRAINED}"] = _line(f"{name}{UNTRAINED}", loaded, reading, gap)
    return found


def windows_untrained(sizes: list[str], reading: Reading) -> list[Line]:
    """A line per window `W` or `W+sinks` in all layers of the teacher."""
    lines = []
    for size in sizes:
        window, _, sinks = size.partition("+")
        model = convert(reading.teacher.model, WindowConfig(int(window), int(sinks or 0)))
        name = f"window of {window}{f' and {sinks} sinks' if sinks else ''}{UNTRAINED}"
        lines.append(_line(name, dataclasses.replace(reading.teacher, model=model), reading, None))
    return lines


def _line(name: str, loaded: Checkpoint, reading: Reading, gap: float | None, tokens: int = 0) -> Line:
    states = loaded.model.state_spec()
    size = sum(spec.bytes(length=TRAINED) for spec in states)
    grows = any(spec.grows for spec in states)
    at = reading.nats(loaded, reading.lengths)
    above = reading.above(loaded)
    gap = above[0].mean().item() if above else gap
    if gap is None:
        raise SystemExit(f"--windows needs {TRAINED} among --lengths")
    weights = sum(weight.nbytes for weight in loaded.model.parameters()) if reading.weights else None
    return Line(name, [gap], size, grows, tokens, at, [[windows] for windows in above], weights, loaded)


def time_steps(lines: list[Line], config: BenchConfig) -> None:
    """Export the students, and measure a step of each in turn."""
    with tempfile.TemporaryDirectory() as folder:
        graphs = [Path(folder) / f"{number}.onnx" for number in range(len(lines))]
        for line, graph in zip(lines, graphs, strict=True):
            export(line.model, graph)
        for line, found in zip(lines, bench(graphs, config).graphs, strict=True):
            line.milliseconds = found.milliseconds.median


def _nats(at: tuple[float, float]) -> str:
    return f"{at[0]:.3f} ({at[1]:.3f})"


def _paired(seeds: list[Tensor]) -> str:
    """The mean difference, and its standard error over windows that both models read; seeds are averaged first."""
    windows = torch.stack(seeds).mean(0)
    return f"{windows.mean():+.3f} ± {windows.std() / len(windows) ** 0.5:.3f}"


def students(lines: list[Line], reading: Reading) -> Table:
    """A row for the teacher, if lengths are measured, and one per student."""
    also = [f"on {text.name}" for text in reading.also]
    sizes = ["bytes of state", *(["bytes of weights"] if reading.weights else [])]
    trained = ["tokens", *(["ms a step"] if any(line.milliseconds is not None for line in lines) else [])]
    head = ["student", "above the teacher", *also, *sizes, *trained, *(f"{n:,}" for n in reading.lengths)]
    own = [*map(_nats, reading.own), *["out of range"] * (len(reading.lengths) - len(reading.own))]
    first = [["the teacher", *[""] * (len(head) - 1 - len(own)), *own]] if own else []
    return Table("", head, [*first, *(line.cells() for line in lines)])


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `show`."""
    parser.add_argument("--save", type=Path)
    parser.add_argument("--page", type=Path)


def show(made: Table, options: argparse.Namespace) -> None:
    """Print the table, and write it to the files in the options."""
    print(made.markdown())
    if options.save:
        keep(made, options.save, options.page)


def keep(made: Table, file: Path, page: Path | None) -> None:
    """Write the table's cells to `file`, and fill the table of that name in the page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"head": made.head, "rows": made.rows}, indent=1) + "\n", encoding="utf-8")
    if page is not None:

        def filled(place: re.Match[str]) -> str:
            head, name, _, end = place.groups()
            return f"{head}{made.markdown()}\n{end}" if name == file.name else place[0]

        page.write_text(PLACE.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


def draw(lines: list[Line], path: Path) -> None:
    with drawing(path, size=(8, 5)) as figure:
        axes = figure.subplots()
        for number, line in enumerate(sorted(lines, key=lambda line: line.gap)):
            right = number % 2 == 1
            axes.plot(line.bytes / 1e3, line.gap, "o", color="C1" if line.grows else "C0")
            axes.annotate(
                line.name,
                (line.bytes / 1e3, line.gap),
                xytext=(6 if right else -6, -3),
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=8,
            )
        axes.set(
            xscale="log", yscale="log", xlabel="state of a sequence, KB", ylabel="nats per token above the teacher"
        )
        axes.grid(alpha=0.3, which="both")
        axes.margins(x=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=Path, nargs="*")
    parser.add_argument("--sort", choices=["nats", "bytes"], help="the nearest to the teacher, or the smallest, first")
    parser.add_argument("--lengths", default="")
    parser.add_argument("--untrained", default="")
    parser.add_argument("--windows", default="", help="untrained windows to add: W or W+SINKS")
    parser.add_argument("--weights", action="store_true", help="a column with the bytes of float32 weights")
    parser.add_argument("--only", default="", help="names of students; default: all")
    parser.add_argument("--text", type=Path, nargs="+", default=[data_folder() / "text" / "tinystories.txt"])
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="further texts, a column each")
    parser.add_argument("--reach", type=int, default=0, help="longest window of the teacher; default: any")
    parser.add_argument("--eval-tokens", type=int, default=0, help="most tokens at each length; default: all")
    parser.add_argument("--teacher", type=Path, default=data_folder() / "checkpoints" / "stories260K")
    parser.add_argument("--step-times", action="store_true", help="milliseconds of a step of each student's graph")
    parser.add_argument("--plot", type=Path)
    add_outputs(parser)
    options = parser.parse_args()
    lengths = sorted(int(part) for part in filter(None, options.lengths.split(",")))
    untrained, only, windows = (
        list(filter(None, part.split(","))) for part in (options.untrained, options.only, options.windows)
    )
    teacher = checkpoint.load(options.teacher)
    also, reach = tuple(options.also), options.reach
    reading = Reading(options.text, options.eval_tokens, lengths, teacher, options.weights, also, reach)
    found: dict[str, Line] = {}
    for work in options.builds:
        add_lines(found, work, untrained, reading, only)
    lines = [*found.values(), *windows_untrained(windows, reading)]
    if options.sort:
        lines.sort(key=lambda line: line.gap if options.sort == "nats" else line.bytes)
    if options.step_times:
        time_steps(lines, BenchConfig(threads=1, starts=0))
    show(students(lines, reading), options)
    if options.plot:
        draw(lines, options.plot)


if __name__ == "__main__":
    main()

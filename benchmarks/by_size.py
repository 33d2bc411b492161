"""What a student loses to its teacher by the teacher's size, with a fitted line: a table of docs/quality.md.

    python benchmarks/by_size.py build/sizes-400K build/sizes-1M build/sizes-3M build/stories6M build/sizes-25M
        [--beside benchmarks/results/by-size.json] [--student model] [--save benchmarks/results/by-size.json]
        [--page docs/quality.md] [--plot docs/plots/by-size.svg]

A build is a folder written by `t2r build`; a row per build, by the teacher's parameters. `--beside` adds the builds of
a saved table, whose folders need not exist any more; its nats have three decimals. The line is

    log(nats above the teacher) = a + b·log(parameters),

by least squares. From four builds on, the rows `fitted` have its prediction for larger teachers with the interval that
holds 95 of 100 new builds if the line is right and its errors are normal (Student's t with builds - 2 degrees of
freedom); that of three would reach over orders of magnitude. `--save` writes the cells, `--page` fills the table of
that name.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from builds import add_outputs, show
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.pruning.versions import state_bytes
from t2r_export.training.drawing import drawing
from t2r_runtime.errors import UserError

HEAD = ["parameters", "teacher, nats", "above the teacher", "share", "bytes of state", "tokens"]
PREDICTING = 4  # minimum number of builds for predictions
LARGER = (135_000_000, 1_500_000_000)
TWO_SIDED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}  # 95 %, by degrees


@dataclass(frozen=True)
class Build:
    """A teacher and its student."""

    parameters: int  # of the teacher; a tied head counts once
    teacher: float  # nats per token of the test part
    student: float
    state: int  # bytes of a sequence
    tokens: int

    @property
    def gap(self) -> float:
        return self.student - self.teacher

    def cells(self) -> list[str]:
        share = f"{100 * self.gap / self.teacher:.1f} %"
        trained = f"{self.tokens / 1e6:.1f} M"
        return [f"{self.parameters:,}", f"{self.teacher:.3f}", f"{self.gap:+.3f}", share, f"{self.state:,}", trained]


@dataclass(frozen=True)
class Line:
    """log(gap) = a + b·log(parameters)."""

    a: float
    b: float
    error: float  # standard error of b
    spread: float  # standard deviation of the residuals
    at: tuple[float, ...]  # log(parameters) of the builds

    def predict(self, parameters: float) -> tuple[float, float, float]:
        """The gap at a size, and the ends of the interval for a new build."""
        x, n, mean = math.log(parameters), len(self.at), float(np.mean(self.at))
        off = (x - mean) ** 2 / sum((other - mean) ** 2 for other in self.at)
        wide = TWO_SIDED[n - 2] * self.spread * math.sqrt(1 + 1 / n + off)
        middle = self.a + self.b * x
        return math.exp(middle), math.exp(middle - wide), math.exp(middle + wide)


def read(work: Path, student: str) -> Build:
    """The build in the folder `work`.

    Raises:
        UserError: no such student, or a gap that is not positive, so has no logarithm.
    """
    rows = {row["name"]: row for row in json.loads((work / "results.json").read_text(encoding="utf-8"))}
    if student not in rows:
        raise UserError(f"a student of {', '.join(rows)} in {work}", student, "choose one of those by --student")
    row = rows[student]
    if row["student_nats"] <= row["teacher_nats"]:
        raise UserError("a student above its teacher", f"{row['student_nats']} in {work}", "leave that build out")
    teacher, model = checkpoint.load(work / "teacher.pt").model, checkpoint.load(work / row["path"]).model
    size = sum(weight.numel() for weight in teacher.parameters())
    return Build(size, row["teacher_nats"], row["student_nats"], state_bytes(model), row["tokens"])


def saved(path: Path) -> list[Build]:
    """The builds of a table that `--save` wrote. Raises UserError for other files."""
    try:
        head, rows = (json.loads(path.read_text(encoding="utf-8"))[part] for part in ("head", "rows"))
        if head != HEAD:
            raise ValueError
        return [_build(row) for row in rows if row[1]]  # rows of the fitted line have no teacher
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise UserError("a table saved by by_size.py", str(path), "name another file") from None


def _build(row: Sequence[str]) -> Build:
    parameters, teacher, gap, _, state, tokens = (float(cell.rstrip(" M%").replace(",", "")) for cell in row)
    return Build(int(parameters), teacher, teacher + gap, int(state), round(tokens * 1e6))


def fit(builds: Sequence[Build]) -> Line:
    """The line through the builds, by least squares.

    Raises:
        UserError: fewer than three builds, or more than `TWO_SIDED` covers.
    """
    if not 1 <= len(builds) - 2 <= max(TWO_SIDED):
        raise UserError(f"3 to {max(TWO_SIDED) + 2} builds", str(len(builds)), "name others")
    x, y = np.log([build.parameters for build in builds]), np.log([build.gap for build in builds])
    (b, a), ((variance, _), _) = np.polyfit(x, y, 1, cov=True)
    spread = math.sqrt(float(np.sum((y - a - b * x) ** 2)) / (len(builds) - 2))
    return Line(float(a), float(b), math.sqrt(float(variance)), spread, tuple(map(float, x)))


def table(builds: Sequence[Build], line: Line) -> Table:
    """The builds, and the line's predictions for larger ones."""
    rows = [build.cells() for build in builds]
    for size in LARGER if len(builds) >= PREDICTING else ():
        middle, low, high = line.predict(size)
        rows.append([f"{size:,}", "", f"fitted: {middle:+.3f} ({low:+.3f} to {high:+.3f})", "", "", ""])
    slope = f"b = {line.b:+.2f} ± {line.error:.2f}, residuals of {100 * line.spread:.0f} %"
    return Table("", HEAD, [*rows, ["fitted line", "", slope, "", "", ""]])


def draw(builds: Sequence[Build], line: Line, path: Path) -> None:
    """Draw builds in the order of their parameters."""
    at, gaps = [build.parameters for build in builds], [build.gap for build in builds]
    predicts = len(builds) >= PREDICTING
    ticks = [*at, LARGER[0]] if predicts else at
    sizes = np.geomspace(ticks[0], ticks[-1], 50)
    middle, low, high = np.array([line.predict(size) for size in sizes]).T
    with drawing(path, size=(7, 4)) as figure:
        axes = figure.subplots()
        if predicts:
            axes.fill_between(sizes, low, high, alpha=0.2, label="95 of 100 new builds, if the line is right")
        axes.plot(sizes, middle, label=f"fitted line, slope {line.b:+.2f} ± {line.error:.2f}")
        axes.plot(at, gaps, "o", label="builds")
        axes.set(xscale="log", xlabel="parameters of the teacher", ylabel="nats/token above the teacher")
        axes.set_ylim(0, 1.1 * (high.max() if predicts else max(gaps)))
        axes.set_xticks(ticks, [f"{size / 1e6:.1f} M" for size in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3, which="both")
        axes.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=Path, nargs="*")
    parser.add_argument("--beside", type=Path, help="a saved table, whose builds are added")
    parser.add_argument("--student", default="model", help="name of the student in each build")
    parser.add_argument("--plot", type=Path)
    add_outputs(parser)
    options = parser.parse_args()
    builds = [read(work, options.student) for work in options.builds]
    builds += saved(options.beside) if options.beside else []
    builds.sort(key=lambda build: build.parameters)
    line = fit(builds)
    show(table(builds, line), options)
    if options.plot:
        draw(builds, line, options.plot)


if __name__ == "__main__":
    main()

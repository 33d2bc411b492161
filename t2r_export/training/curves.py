"""Training curves: read the logs of `finetune`; write them as CSV or as a plot."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2r_export.files import write_bytes
from t2r_export.training.drawing import drawing
from t2r_runtime.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """Log values of one step; None if not logged."""

    stage: str
    step: int  # of the stage
    tokens: int  # of the run so far
    loss: float | None = None  # of the stage, mean since the previous point
    learning_rate: float | None = None
    validation_loss: float | None = None  # of the stage, on the valid part
    validation_nats: float | None = None  # per token, on the same windows


@dataclass(frozen=True)
class Curve:
    """The points of one run. Steps repeated after a resume replace the earlier ones."""

    name: str
    points: list[Point]
    teacher: float | None  # nats per token on the validation windows; None before the run is complete

    def stages(self) -> list[list[Point]]:
        """The points of each stage."""
        return [list(group) for _, group in itertools.groupby(self.points, key=lambda point: point.stage)]


def read_curves(logs: Sequence[Path]) -> list[Curve]:
    """One curve per log, named after its file, or its path if file names repeat.

    Raises:
        UserError: no log, or another kind of file.
    """
    if not logs:
        raise UserError("at least one log", "none", "name the .jsonl files that t2r finetune wrote")
    short = [log.name.removesuffix(".jsonl").removesuffix(".pt") for log in logs]
    unique = len(set(short)) == len(short)
    return [_read(log, name if unique else str(log)) for log, name in zip(logs, short, strict=True)]


def _read(path: Path, name: str) -> Curve:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not lines or lines[0].get("event") != "start":
            raise ValueError("no line with the event start")
        return _curve(name, lines)
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing log") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"a training log in {path}", reason, "name a .jsonl file that t2r finetune wrote") from error


def _curve(name: str, lines: list[dict[str, Any]]) -> Curve:
    found: dict[tuple[int, int], Point] = {}  # by stage and step
    stage, teacher = 0, None
    plan: list[str] = []
    for line in lines:
        if line.get("event") == "start":
            plan = [part["stage"] for part in line["stages"]]
            stage = line["stage"]
            # a resumed run repeats the steps after its saved state
            found = {key: point for key, point in found.items() if key <= (stage, line["step"])}
        elif line.get("event") == "done":
            teacher = line["before"].get("teacher_valid")
        else:
            stage = plan.index(line["stage"], stage)  # a plan may have a stage twice
            key = (stage, line["step"])
            known = {field.name: line[field.name] for field in fields(Point) if line.get(field.name) is not None}
            old = vars(found[key]) if key in found else {}
            found[key] = Point(**{**old, **known, "tokens": line["tokens"]})
    return Curve(name, [found[key] for key in sorted(found)], teacher)


def write_csv(curves: Sequence[Curve], path: Path) -> None:
    """Write all points as CSV with the run's name and the fields of `Point`; missing values are empty."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    table.writerow(["run", *names])
    for curve in curves:
        table.writerows([curve.name, *(getattr(point, name) for name in names)] for point in curve.points)
    write_bytes(path, text.getvalue().encode())


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Plot validation nats per token (above) and the losses of the stages (below) against tokens.

    The file depends only on the curves: it contains no date.

    Raises:
        UserError: matplotlib is missing, or `path` is neither .svg nor .png.
    """
    with drawing(path, size=(9, 7.5)) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        _draw_nats(above, curves)
        _draw_losses(below, curves)
        figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(curves), 3))


def _draw_nats(axes: Axes, curves: Sequence[Curve]) -> None:
    for number, curve in enumerate(curves):
        points = [(p.tokens, p.validation_nats) for p in curve.points if p.validation_nats is not None]
        axes.plot(*_columns(points), marker="o", markersize=3, color=_colour(number), label=curve.name)
    for nats in sorted({curve.teacher for curve in curves if curve.teacher is not None}):
        axes.axhline(nats, color="grey", linestyle="--", linewidth=1)
        axes.annotate("teacher", (1, nats), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="grey")
    axes.set_ylabel("validation, nats/token")
    axes.grid(alpha=0.3)


def _draw_losses(axes: Axes, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import LogLocator  # optional

    for number, curve in enumerate(curves):
        for stage in curve.stages():  # stages have different losses: no line connects them
            trained = [(p.tokens, p.loss) for p in stage if p.loss is not None]
            valid = [(p.tokens, p.validation_loss) for p in stage if p.validation_loss is not None]
            axes.plot(*_columns(trained), color=_colour(number), linewidth=0.8, alpha=0.6)
            axes.plot(*_columns(valid), color=_colour(number), linestyle=":", marker="o", markersize=3)
            if trained:
                axes.annotate(stage[0].stage, trained[0], fontsize="x-small", color=_colour(number))
    axes.set_yscale("log", subs=[])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # a range within a decade has labels, too
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("the stage's loss (dots: in validation)")
    axes.set_xlabel("tokens trained on")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _colour(number: int) -> str:
    """One of matplotlib's ten colours."""
    return f"C{number % 10}"

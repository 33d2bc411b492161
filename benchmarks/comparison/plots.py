"""Plots of time per token and memory against length. Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

import importlib.util
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.tables import DECODE, TRANSLATE, measured
from t2r_export.training.drawing import FORMATS, drawing
from t2r_runtime.errors import UserError

KINDS = {
    "time": ("median", 1.0, "milliseconds per token"),
    "memory": ("resident", 1e-6, "resident memory, MB"),
}
STYLES = {"t2r": "-", "genai": "--", "llama.cpp": "-.", "torch": ":", "ctranslate2": "-.", "transformers": ":"}
TEACHER = "--"  # t2r graphs of the softmax model


@dataclass(frozen=True)
class Curves:
    """Rows of a result to draw, and their x-axis."""

    rows: str
    length: str
    label: str


CURVES = {
    DECODE: Curves("steps", "context", "tokens read before"),
    TRANSLATE: Curves("lengths", "length", "tokens of the translation"),
}


def require_plots() -> None:
    """Raise UserError if matplotlib is not installed; names the extra that installs it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            "matplotlib, to draw",
            "an installation without it",
            "install the extra `plot` (pip install 't2r-export[plot]')",
        )


def draw(result: Mapping[str, Any], folder: Path, names: Container[str]) -> list[Path]:
    """Plot time and memory against length as SVG and PNG per number of threads.

    Args:
        result: a result with a format in CURVES.
        folder: created if it does not exist.
        names: the candidates to draw; there are ten colors.

    Raises:
        UserError: no matplotlib, or a folder that cannot be written to.
    """
    require_plots()
    curves = CURVES[result["format"]]
    drawn = [row for row in result[curves.rows] if row["name"] in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"a folder at {folder}", str(error.strerror), "choose another place") from error
    written = []
    for threads in dict.fromkeys(row["threads"] for row in drawn):
        rows = [row for row in drawn if row["threads"] == threads]
        for kind in KINDS:
            written += _figure(result, curves, rows, kind, folder / f"{kind}-{result['size']}-{threads}")
    return written


def _figure(
    result: Mapping[str, Any], curves: Curves, rows: Sequence[Mapping[str, Any]], kind: str, stem: Path
) -> list[Path]:
    key, scale, label = KINDS[kind]
    paths = [stem.with_name(stem.name + ending) for ending in FORMATS]
    with drawing(*paths, size=(7.5, 5.5), dpi=150) as figure:
        axes = figure.add_subplot()
        for name in dict.fromkeys(row["name"] for row in rows):
            points = [(row[curves.length], scale * row[key]) for row in rows if row["name"] == name and key in row]
            if points:
                style = TEACHER if "model=teacher" in name else STYLES.get(name.split(":")[0], "-")
                axes.plot(*zip(*points, strict=True), style, marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=curves.label, ylabel=label)
        axes.set_title(f"{measured(result, rows[0]['threads'])}, {result['machine']['cpu']}", fontsize=10)
        axes.grid(True, which="both", alpha=0.25)
        if axes.lines:
            axes.legend(fontsize=7, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return paths

"""Plots of what was measured against length: time per token, and memory. Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
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
TEACHER = "--"  # of our graphs of the softmax model


@dataclass(frozen=True)
class Curves:
    """What of a result is drawn: its rows, and what they stand over."""

    rows: str
    length: str
    label: str


CURVES = {
    DECODE: Curves("steps", "context", "tokens read before"),
    TRANSLATE: Curves("lengths", "length", "tokens of the translation"),
}


def require_plots() -> None:
    """Raises UserError where matplotlib is not installed; names the extra that brings it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            "matplotlib, to draw",
            "an installation without it",
            "install the extra `plot` (pip install 't2r-export[plot]')",
        )


def draw(result: Mapping[str, Any], folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """Write time and memory against length as SVG and PNG, for each number of threads.

    Args:
        result: of a format in CURVES.
        folder: made if it is not there.
        names: of the candidates to draw; none is all but controls.

    Raises:
        UserError: no matplotlib, a name that was not measured, or a folder that cannot be written to.
    """
    require_plots()
    curves = CURVES[result["format"]]
    drawn = result[curves.rows]
    known = list(dict.fromkeys(row["name"] for row in drawn))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"names of {', '.join(known)}", ", ".join(unknown), "choose some of those")
    shown = list(names) or [name for name in known if not name.endswith(":again")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"a folder at {folder}", str(error.strerror), "choose another place") from error
    written = []
    for threads in dict.fromkeys(row["threads"] for row in drawn):
        rows = [row for row in drawn if row["threads"] == threads]
        for kind in KINDS:
            written += _figure(result, curves, rows, kind, shown, folder / f"{kind}-{result['size']}-{threads}")
    return written


def _figure(
    result: Mapping[str, Any],
    curves: Curves,
    rows: Sequence[Mapping[str, Any]],
    kind: str,
    names: Sequence[str],
    stem: Path,
) -> list[Path]:
    key, scale, label = KINDS[kind]
    paths = [stem.with_name(stem.name + ending) for ending in FORMATS]
    with drawing(*paths, size=(7.5, 5.5), dpi=150) as figure:
        axes = figure.add_subplot()
        for name in names:
            points = [(row[curves.length], scale * row[key]) for row in rows if row["name"] == name and key in row]
            if points:
                style = TEACHER if "model=teacher" in name else STYLES.get(name.split(":")[0], "-")
                axes.plot(*zip(*points, strict=True), style, marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=curves.label, ylabel=label)
        axes.set_title(f"{measured(result, rows[0]['threads'])}, {result['machine']['cpu']}", fontsize=10)
        axes.grid(True, which="both", alpha=0.25)
        if axes.lines:
            # below, where it covers no line
            axes.legend(fontsize=7, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return paths

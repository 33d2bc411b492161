"""README's picture: time per token of four engines, from the table of `make bench` in docs/performance.md.

    python benchmarks/picture.py [--source docs/performance.md] [--plot docs/plots/time-per-token.svg]
        [--save benchmarks/results/time-per-token.json] [--page docs/faq.md]

Stores the medians under plain names, fills the table in the page, and draws it. Needs the extra `plot`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from builds import keep
from comparison.page import PLACE
from comparison.tables import Table
from t2r_export.training.drawing import drawing
from t2r_runtime.errors import UserError

SERIES = {  # row of the table → name and color
    "llama.cpp:Q4_0": ("llama.cpp, Q4_0", "#d95f02"),
    "genai:int4": ("onnxruntime-genai, int4", "#7570b3"),
    "t2r:w4:prefill=1": ("t2r-export, default, w4", "#1b9e77"),
    "t2r:w4:provider=t2r:prefill=1": ("t2r-export, the same file on its own provider", "#0b5d46"),
}
TITLE = "SmolLM-135M's shape, random weights, 4 bits, 2 threads of one CPU"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("docs/performance.md"))
    parser.add_argument("--plot", type=Path, default=Path("docs/plots/time-per-token.svg"))
    parser.add_argument("--save", type=Path, default=Path("benchmarks/results/time-per-token.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/faq.md"))
    options = parser.parse_args(arguments)
    lengths, medians = read(options.source.read_text(encoding="utf-8"))
    rows = [
        [SERIES[name][0], *(f"{by_length[length]:.2f}" if length in by_length else "-" for length in lengths)]
        for name, by_length in medians.items()
    ]
    head = ["ms per token after", *(f"{length:,}" for length in lengths)]
    keep(Table("", head, rows), options.save, options.page)
    draw(medians, options.plot)


def read(page: str) -> tuple[list[int], dict[str, dict[int, float]]]:
    """Lengths, and milliseconds per token of each series by length, in the order of SERIES.

    Raises:
        UserError: no such table, or one without a series.
    """
    found = [place[0] for place in PLACE.finditer(page) if place.groups()[1:3] == ("decode.json", "steps-2")]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in "".join(found).splitlines() if "|" in line
    ]
    rows = {name: values for name, *values in cells[2:]}
    missing = SERIES.keys() - rows.keys()
    if missing:
        raise UserError(f"a table decode.json steps-2 with {', '.join(sorted(missing))}", "none", "run make bench")
    lengths = [int(cell.replace(",", "")) for cell in cells[0][1:]]
    return lengths, {name: _medians(lengths, rows[name]) for name in SERIES}


def _medians(lengths: Sequence[int], cells: Sequence[str]) -> dict[int, float]:
    found = {length: re.match(r"[\d.]+", cell) for length, cell in zip(lengths, cells, strict=True)}
    return {length: float(median[0]) for length, median in found.items() if median}


def draw(medians: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw the series as lines, each labelled at its end."""
    with drawing(path, size=(8, 4.2)) as figure:
        figure.patch.set_facecolor("white")
        axes = figure.subplots()
        lengths = sorted({length for points in medians.values() for length in points})
        longest = lengths[-1]
        for number, (name, points) in enumerate(medians.items()):
            label, color = SERIES[name]
            axes.plot(
                list(points), list(points.values()), "-" if "t2r" in name else "--", color=color, marker="o", lw=2
            )
            end, value = list(points.items())[-1]
            whole = end == longest  # its label is inside the axes
            up = (7 if whole else 3) if number % 2 == 0 else (-14 if whole else -12)
            place, side = ((-2, up), "right") if whole else ((9, up), "left")
            axes.annotate(label, (end, value), xytext=place, textcoords="offset points", color=color, ha=side)
        axes.set(xscale="log", xlabel="tokens read and written before", ylabel="milliseconds per token")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
        axes.minorticks_off()
        axes.set_ylim(0, 1.1 * max(value for points in medians.values() for value in points.values()))
        axes.set_title(TITLE, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)


if __name__ == "__main__":
    main()

"""README's picture: time per token of a real model, from the table of beside_llama.py in docs/real-weights.md.

    python benchmarks/picture.py [--source docs/real-weights.md] [--plot docs/plots/time-per-token.svg]

Needs the extra `plot`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2r_export.training.drawing import drawing
from t2r_runtime.errors import UserError

SERIES = {  # column of the table → name, color, line and height of the name above its end
    "llama.cpp": ("llama.cpp", "#d95f02", "--", 8),
    "`keep`": ("t2r-export, the unchanged model", "#1b9e77", "-", 8),
    "student": ("t2r-export, its student of constant size", "#0b5d46", "-", -16),
}
HEAD = f"| | {' | '.join(SERIES)} |"
ROW = re.compile(r"\| (?:step after )?([\d,]+)(?: tokens, ms)? \|" + r" ([\d.]+)[^|]*\|" * len(SERIES))
TITLE = "SmolLM2-135M-Instruct of a GGUF file in Q4_1, 2 threads of one CPU"

Medians = dict[str, dict[int, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("docs/real-weights.md"))
    parser.add_argument("--plot", type=Path, default=Path("docs/plots/time-per-token.svg"))
    options = parser.parse_args(arguments)
    draw(read(options.source.read_text(encoding="utf-8")), options.plot)


def read(page: str) -> Medians:
    """Milliseconds per token of each series by length.

    Raises:
        UserError: no such table.
    """
    _, head, rest = page.partition(HEAD)
    rows = [row for line in rest.partition("\n\n")[0].splitlines() if (row := ROW.match(line))]
    if not head or len(rows) < 2:
        raise UserError(f"a table with the columns {HEAD}", "none", "name the page that has it")
    lengths = [int(row[1].replace(",", "")) for row in rows]
    columns = ([float(row[number]) for row in rows] for number in range(2, len(SERIES) + 2))
    return {name: dict(zip(lengths, column, strict=True)) for name, column in zip(SERIES, columns, strict=True)}


def draw(medians: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw the series as lines, each labelled at its end."""
    with drawing(path, size=(8, 4.2)) as figure:
        figure.patch.set_facecolor("white")
        axes = figure.subplots()
        lengths = sorted({length for points in medians.values() for length in points})
        for name, points in medians.items():
            label, color, line, above = SERIES[name]
            axes.plot(list(points), list(points.values()), line, color=color, marker="o", lw=2)
            end, value = list(points.items())[-1]
            axes.annotate(label, (end, value), xytext=(0, above), textcoords="offset points", color=color, ha="right")
        axes.set(xlabel="tokens read and written before", ylabel="milliseconds per token")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
        axes.minorticks_off()
        axes.set_ylim(0, 1.1 * max(value for points in medians.values() for value in points.values()))
        axes.set_title(TITLE, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)


if __name__ == "__main__":
    main()

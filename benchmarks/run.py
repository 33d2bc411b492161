"""Run the measurements of a plan, draw the plots, and fill the tables in the docs.

    python benchmarks/run.py [--plan benchmarks/plan.toml] [--only decode.json,batch.json] [--out build/bench]
        [--page docs/performance.md] [--keep]

`--keep` makes plots and page from existing results. Needs the extras `peers` (other engines) and `plot`, and an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from comparison import page, plots
from comparison.plan import Measurement, read_plan
from comparison.tables import read_result, tables
from t2r_export.cli.output import table
from t2r_export.files import write_bytes
from t2r_runtime.cli.output import plain
from t2r_runtime.errors import T2RError, UserError

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=HERE / "plan.toml")
    parser.add_argument("--only", default="", help="comma-separated results to measure; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of results and plots")
    parser.add_argument("--page", type=Path, default=None, help="Markdown page to fill")
    parser.add_argument("--keep", action="store_true", help="use existing results")
    options = parser.parse_args(arguments)
    try:
        forms, measurements = read_plan(options.plan)
        chosen = _chosen(measurements, options.only)
        if not options.keep:
            if any(measurement.plots for measurement in chosen):
                plots.require_plots()
            chosen = measure(chosen, options.out, required=bool(options.only))
        draw(chosen, options.out)
        if options.page is not None:
            results = {path.name: read_result(path) for path in sorted(options.out.glob("*.json"))}
            for place in page.fill(options.page, results, forms):
                note(f"{options.page}: nothing for {place}")
    except T2RError as error:
        note(str(error))
        return error.exit_code
    return 0


def measure(measurements: Sequence[Measurement], out: Path, required: bool) -> list[Measurement]:
    """Run measurements in order; each result is written and printed when it is complete.

    Args:
        required: do not skip optional measurements.

    Returns:
        The completed measurements.
    """
    out.mkdir(parents=True, exist_ok=True)
    prepared = []
    for measurement in measurements:
        try:
            prepared.append((measurement, measurement.prepare()))
        except UserError as error:
            if required or not measurement.optional:
                raise
            note(f"{measurement.file} is left out: {error}")
    for measurement, run in prepared:
        note(f"{measurement.file}: {measurement.kind}")
        result = run(note)
        write_bytes(out / measurement.file, json.dumps(plain(result), ensure_ascii=False).encode())
        for made in tables(result).values():
            print(f"{made.title}\n{table(made.rows, made.head)}\n", flush=True)
    return [measurement for measurement, _ in prepared]


def draw(measurements: Sequence[Measurement], out: Path) -> None:
    """Draw the plots of existing results."""
    for measurement in measurements:
        result = out / measurement.file
        if measurement.plots and (result.exists() or not measurement.optional):
            for path in plots.draw(read_result(result), out, measurement.plots):
                note(f"wrote {path}")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _chosen(measurements: Sequence[Measurement], only: str) -> list[Measurement]:
    wanted = only.split(",") if only else [measurement.file for measurement in measurements if not measurement.alone]
    unknown = set(wanted) - {measurement.file for measurement in measurements}
    if unknown:
        known = ", ".join(measurement.file for measurement in measurements)
        raise UserError(f"results of the plan ({known})", ", ".join(sorted(unknown)), "correct --only")
    return [measurement for measurement in measurements if measurement.file in wanted]


if __name__ == "__main__":
    raise SystemExit(main())

"""`t2r plot`: the curves of training runs."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.paths import check_outputs
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.files import existing_file

FILE = click.Path(path_type=Path)


@click.command("plot")
@click.argument("logs", type=FILE, nargs=-1, required=True, metavar="LOG.jsonl...")
@click.option("--out", type=FILE, help="File to draw to, .svg or .png; needs the extra `plot`.")
@click.option("--csv", "table", type=FILE, help="File to write the points to, as a table.")
@json_option
def command(logs: tuple[Path, ...], out: Path | None, table: Path | None, as_json: bool) -> None:
    """Draw the losses of training runs against the tokens they were trained on, one colour per run."""
    if out is None and table is None:
        raise click.UsageError("Missing option '--out' or '--csv'.")
    check_outputs([("drawing", out), ("table", table)], [existing_file(log, "a training log") for log in logs])

    from t2r_export.training.curves import draw, read_curves, write_csv

    curves = read_curves(logs)
    if table is not None:
        write_csv(curves, table)
    if out is not None:
        draw(curves, out)
    written = [path for path in (table, out) if path is not None]
    points = {curve.name: len(curve.points) for curve in curves}
    show(
        as_json,
        {"files": written, "points": points},
        f"{', '.join(map(str, written))}: {len(curves)} runs, {sum(points.values())} points",
    )

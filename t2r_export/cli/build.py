"""`t2r build`: convert and finetune the models of a recipe."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import table, with_error
from t2r_export.config.recipe import read_recipe
from t2r_runtime.cli.output import json_option, note, show

FILE = click.Path(path_type=Path)


@click.command("build")
@click.argument("recipe", type=FILE)
@click.option("--work", type=FILE, required=True, metavar="DIR", help="Folder of models and logs, kept between runs.")
@click.option(
    "--data",
    type=FILE,
    envvar="T2R_DATA",
    help="Folder of the recipe's checkpoints and texts. Default: $T2R_DATA, or the folder of RECIPE.",
)
@click.option("--anew", is_flag=True, help="Replace models in DIR that were built from another recipe or text.")
@json_option
def command(recipe: Path, work: Path, data: Path | None, anew: bool, as_json: bool) -> None:
    """Build every model of RECIPE, a TOML file; a second run resumes the first."""
    plan = read_recipe(recipe)
    data = data or plan.folder
    plan.check_files(data)

    from t2r_export.build import build

    students = build(recipe, work, data, note, anew)
    rows = [
        [s.name, with_error(s.teacher_nats, s.teacher_error), with_error(s.student_nats, s.student_error)]
        + [f"{s.student_nats - s.teacher_nats:+.4f}"]
        + [f"{s.tokens:,}", f"{s.seconds:.0f}"]
        for s in students
    ]
    head = ["student", "teacher, nats/token", "student", "difference", "tokens", "seconds"]
    show(as_json, {"students": students}, table(rows, head))

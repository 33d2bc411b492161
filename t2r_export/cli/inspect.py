"""`t2r inspect`: describe a model or a graph."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import note_each
from t2r_export.paths import existing_model
from t2r_runtime.cli.output import json_option, show


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def command(path: Path, as_json: bool) -> None:
    """Describe PATH (a model.pt, a Hugging Face folder, a .gguf or a graph): layers, states, sizes, metadata."""
    existing_model(path)

    from t2r_export.cli.description import text
    from t2r_export.describe import describe

    description = describe(path)
    note_each(description.notes)
    show(as_json, description.to_dict(), text(description))

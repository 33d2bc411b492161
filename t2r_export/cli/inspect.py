"""`t2r inspect`: describe a model or a graph."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import base_option, note_each
from t2r_export.paths import check_base, existing_model
from t2r_runtime.cli.output import json_option, show


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@base_option
@json_option
def command(path: Path, base: Path | None, as_json: bool) -> None:
    """Describe PATH (a model.pt, Hugging Face folder, .gguf, .adapter or graph): layers, states, sizes, metadata."""
    existing_model(path)
    check_base(path, base)

    from t2r_export.cli.description import text
    from t2r_export.describe import describe

    description = describe(path, base)
    note_each(description.notes)
    show(as_json, description.to_dict(), text(description))

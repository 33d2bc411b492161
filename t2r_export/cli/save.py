"""`t2r save`: a softmax translator as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, note, note_each, show, size
from t2r_export.paths import check_folder, existing_model

FILE = click.Path(path_type=Path)
FAMILIES = ("marian", "pegasus")


@click.command("save")
@click.argument("model", type=FILE)
@click.argument("folder", type=FILE)
@click.option(
    "--as",
    "family",
    type=click.Choice(FAMILIES),
    required=True,
    help="Family: marian has a norm behind each sum, pegasus before each part and at the end.",
)
@json_option
def command(model: Path, folder: Path, family: str, as_json: bool) -> None:
    """Write MODEL, a softmax translator, to FOLDER in the Hugging Face format, for transformers and CTranslate2."""
    existing_model(model)
    check_folder(folder)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.checkpoints.saving import save_folder

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    if loaded.source_tokenizer is not None:
        note("no tokenizer: the format has no place for one of each side")
    files = save_folder(loaded, folder, family)
    written = sum(path.stat().st_size for path in files)
    show(
        as_json,
        {"folder": folder, "files": [path.name for path in files], "bytes": written},
        f"{folder}: {', '.join(path.name for path in files)}, {size(written)}",
    )

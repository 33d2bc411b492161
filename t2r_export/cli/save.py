"""`t2r save`: a softmax translator as a folder that transformers loads, or any model as a model.pt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.output import force_option, note_each, size
from t2r_export.paths import check_folder, check_outputs, existing_model
from t2r_runtime.cli.output import json_option, note, show

if TYPE_CHECKING:
    from t2r_export.checkpoints.checkpoint import Checkpoint

FILE = click.Path(path_type=Path)
FAMILIES = ("marian", "pegasus")
OURS, PRECISIONS = "t2r", ("float32", "float16")


@click.command("save")
@click.argument("model", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--as",
    "family",
    type=click.Choice([*FAMILIES, OURS]),
    required=True,
    help="A folder of a family (marian has a norm behind each sum, pegasus before each part and at the end), or a file "
    "of ours, whatever the model.",
)
@click.option(
    "--weights",
    type=click.Choice(PRECISIONS),
    help="Of a file of ours: float16 takes half the bytes, and rounds.  [default: float32]",
)
@force_option
@json_option
def command(model: Path, out: Path, family: str, weights: str | None, force: bool, as_json: bool) -> None:
    """Write MODEL to OUT: a softmax translator as a folder in the Hugging Face format, for transformers and
    CTranslate2, or any model as a model.pt."""
    check_given()
    existing_model(model)
    if family == OURS:
        check_outputs([("checkpoint", out)], [model], force)
    else:
        check_folder(out)

    import torch

    from t2r_export.checkpoints import checkpoint

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    if family == OURS:
        kept = loaded.tokenizer, loaded.provenance, loaded.source_tokenizer
        checkpoint.save(out, loaded.model, *kept, getattr(torch, weights or "float32"))
        files = [out]
    else:
        files = _folder(loaded, out, family)
    written = sum(path.stat().st_size for path in files)
    names = [path.name for path in files]
    show(as_json, {"out": out, "files": names, "bytes": written}, f"{out}: {', '.join(names)}, {size(written)}")


def _folder(loaded: Checkpoint, out: Path, family: str) -> list[Path]:
    from t2r_export.checkpoints.saving import save_folder

    if loaded.source_tokenizer is not None:
        note("no tokenizer: the format has no place for one of each side")
    return save_folder(loaded, out, family)

"""`t2r sample`: let a model write the text that its students are trained on."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, note_each, shorter, show, size
from t2r_export.cli.past_end import option as past_end_option
from t2r_export.cli.progress import progress
from t2r_export.config.finetune import DEVICES, LENGTH, usual_length
from t2r_export.paths import check_outputs, existing_model

FILE = click.Path(path_type=Path)


@click.command("sample")
@click.argument("model", type=FILE)
@click.argument("out", type=FILE, metavar="OUT.npy")
@click.option(
    "--tokens", type=click.IntRange(1), required=True, metavar="N", help="Number of tokens to write, over all texts."
)
@click.option(
    "--length",
    type=click.IntRange(1),
    help=f"Length of each text in tokens.  [default: {LENGTH}, or the model's context if that is shorter]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Sampling temperature; 1 samples from the model's own probabilities.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the sampling.")
@past_end_option
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Device to compute on.")
@json_option
def command(
    model: Path,
    out: Path,
    tokens: int,
    length: int | None,
    temperature: float,
    seed: int,
    past_end: str,
    device: str,
    as_json: bool,
) -> None:
    """Write text sampled from MODEL, the teacher, as token ids: t2r finetune … --data OUT.npy.

    Needs neither a corpus nor a tokenizer.
    """
    check_outputs([("file of token ids", out)], [existing_model(model)])

    import numpy as np

    from t2r_export.checkpoints import checkpoint
    from t2r_export.training.sample import sample
    from t2r_export.training.trainer import choose_device
    from t2r_runtime.files import replacing

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    loaded.model.end_positions(past_end)
    length = length or shorter(usual_length(loaded.config.max_positions))
    with progress("tokens written", tokens) as on_progress:
        ids = sample(loaded.model.to(choose_device(device)), tokens, length, temperature, seed, on_progress)
    with replacing(out) as part, part.open("wb") as file:
        np.save(file, ids)
    written = out.stat().st_size
    show(as_json, {"out": out, "tokens": len(ids), "bytes": written}, f"{out}: {len(ids):,} tokens, {size(written)}")

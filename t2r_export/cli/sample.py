"""`t2r sample`: sample training text from a teacher model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.output import note_each, shorter, size
from t2r_export.config.finetune import LENGTH, usual_length
from t2r_export.paths import check_outputs, existing_model
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.outputs import GRAPHS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FILE = click.Path(path_type=Path)


@click.command("sample")
@click.argument("model", type=FILE)
@click.argument("out", type=FILE, metavar="OUT.npy")
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Total number of tokens to sample.")
@click.option(
    "--chats",
    is_flag=True,
    help="Sample conversations, one per row, by the chat template: the model writes the user's messages too. MODEL may "
    "be an exported graph.",
)
@click.option(
    "--sources",
    type=FILE,
    help="Translators, instead of --tokens: file of lines to translate, or a .tsv whose sources to translate.",
)
@click.option(
    "--beam",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Beam width for --sources, with an exported graph; 1 is greedy.",
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
    help="Sampling temperature; 1 samples from the model's distribution.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of the sampling.")
@providers.option
@json_option
def command(
    model: Path,
    out: Path,
    tokens: int | None,
    chats: bool,
    sources: Path | None,
    beam: int,
    length: int | None,
    temperature: float,
    seed: int,
    provider: providers.Provider,
    as_json: bool,
) -> None:
    """Sample text from MODEL, the teacher, as token ids for t2r finetune … --data OUT.npy.

    Needs neither a corpus nor, without --chats, a tokenizer. A translator translates --sources and writes pairs to a
    .tsv, for t2r finetune … --pairs OUT.tsv.
    """
    if (tokens is None) == (sources is None):
        raise UserError("one of --tokens and --sources", "neither" if tokens is None else "both", "pass one")
    check_given()
    if sources is not None:
        return write_pairs(model, out, sources, beam, as_json)
    assert tokens is not None
    if chats:
        return write_chats(model, out, provider, tokens, length, temperature, seed, as_json)
    check_outputs([("file of token ids", out)], [existing_model(model)])

    from t2r_export.checkpoints import checkpoint
    from t2r_export.model.device import choose_device
    from t2r_export.model.sample import sample

    loaded = checkpoint.load(model)
    note_each(loaded.warnings)
    length = length or shorter(usual_length(loaded.config.max_positions))
    with progress("tokens written", tokens) as on_progress:
        ids = sample(loaded.model.to(choose_device("auto")), tokens, length, temperature, seed, on_progress)
    _save(out, ids, as_json)


def write_chats(
    model: Path,
    out: Path,
    provider: providers.Provider,
    tokens: int,
    length: int | None,
    temperature: float,
    seed: int,
    as_json: bool,
) -> None:
    """Sample conversations and write one per row."""
    check_outputs([("file of token ids", out)], [existing_model(model)])

    from t2r_export.quality.chats import open_chat_model

    chat = open_chat_model(providers.decoder_alone(model, provider, None) if model.suffix in GRAPHS else model)
    note_each(chat.notes)
    length = length or shorter(usual_length(chat.reach))
    with progress("tokens written", tokens) as on_progress:
        ids, sampled = chat.sample(tokens, length, temperature, seed, on_progress)
    _save(out, ids, as_json, {"conversations": len(ids), "sampled": sampled})


def _save(out: Path, ids: npt.NDArray[np.int32], as_json: bool, more: Mapping[str, int] = {}) -> None:
    import numpy as np

    from t2r_runtime.files import replacing

    with replacing(out) as part, part.open("wb") as file:
        np.save(file, ids)
    written = out.stat().st_size
    line = f"{out}: {ids.size:,} tokens, {size(written)}"
    if more:
        line += f", {more['conversations']:,} of {more['sampled']:,} sampled conversations"
    show(as_json, {"out": out, "tokens": ids.size, **more, "bytes": written}, line)


def write_pairs(model: Path, out: Path, sources: Path, beam: int, as_json: bool) -> None:
    """Translate sources with a translator and write the pairs."""
    existing_file(sources, "a text of sources")
    check_outputs([("file of pairs", out)], [existing_model(model), sources])

    from t2r_export.quality.translations import read_sources, write_translations

    lines = read_sources(sources)
    with progress("sentences translated", len(lines)) as on_progress:
        count = write_translations(model, out, lines, beam, "auto", on_progress)
    left_out = len(lines) - count
    data = {"out": out, "pairs": count, "left_out": left_out}
    show(as_json, data, f"{out}: {count:,} pairs" + (f", {left_out:,} without a translation" if left_out else ""))

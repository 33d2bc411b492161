"""`t2r tokenize`: tokenize a text into the cache, and show or remove what the cache holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.fields import fields, reading
from t2r_export.cli.output import note_each, size, table
from t2r_export.config.finetune import PARTS, FinetuneConfig
from t2r_export.paths import existing_model, text_files
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.errors import UserError

if TYPE_CHECKING:
    from t2r_export.data.shards import Corpus

FILE = click.Path(path_type=Path)
KEY = 8  # characters of a key or a SHA-256 in the table


@click.command("tokenize")
@click.argument("model", type=FILE, required=False)
@click.argument("texts", type=FILE, nargs=-1, metavar="[TEXT]...")
@fields(FinetuneConfig, "split")
@click.option(
    "--remove",
    metavar="KEY",
    multiple=True,
    help="Remove these tokens: the beginning of a key, or all; repeatable.",
)
@json_option
def command(
    model: Path | None, texts: tuple[Path, ...], split: dict[str, Any] | None, remove: tuple[str, ...], as_json: bool
) -> None:
    """Tokenize TEXT for MODEL as t2r finetune does, into $T2R_CACHE, and show its parts.

    Without arguments: show what the cache holds, the last used first.
    """
    if bool(model) != bool(texts):
        raise UserError("a MODEL and a TEXT, or neither", "a MODEL alone", "name a text")
    if remove and (model or split):
        raise UserError("--remove alone", "a model, or --split", "leave it out")
    if model is None:
        return show_cache(remove, as_json)
    how = reading(split)
    existing_model(model)
    text_files(texts)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.data.corpus import read_corpus

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    with progress("tokens", 0) as on_progress:
        corpus = read_corpus(texts, loaded.tokenizer, loaded.config, *how, on_progress=on_progress)
    show_corpus(corpus, as_json)


def show_corpus(corpus: Corpus, as_json: bool) -> None:
    """Show the size of each part of a text, and the folder of its tokens."""
    parts = [corpus.part(name) for name in PARTS]
    rows = list(zip(PARTS, corpus.documents, map(len, parts), strict=True))
    heads = ["part", "documents", "tokens" if corpus.row is None else "rows"]
    named = [dict(zip(heads, row, strict=True)) for row in rows]
    data = {"folder": corpus.folder, "bytes": corpus.tokens.nbytes, "sha256": corpus.sha256, "parts": named}
    shown = [[name, *(f"{count:,}" for count in counts)] for name, *counts in rows]
    show(as_json, data, f"{table(shown, heads)}\n{corpus.folder}: {size(corpus.tokens.nbytes)}")


def show_cache(removed: tuple[str, ...], as_json: bool) -> None:
    """Remove tokens, and show what the cache holds."""
    from t2r_export.data import shards

    gone = shards.remove(removed)
    found, most = shards.entries(), shards.most_bytes()
    total = sum(each.bytes for each in found)
    rows = [
        [
            each.folder.name[:KEY],
            f"{sum(each.documents):,}",
            f"{sum(each.rows):,}",
            size(each.bytes),
            (each.tokenizer or "ids")[:KEY],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used)),
            " ".join(each.texts),
        ]
        for each in found
    ]
    lines = [f"removed {folder}" for folder in gone]
    if rows:
        lines.append(table(rows, ["key", "documents", "tokens", "size", "tokenizer", "used", "text"]))
    lines.append(f"{shards.cache()}: {size(total)} of at most {size(most)}")
    data = {"folder": shards.cache(), "bytes": total, "most_bytes": most, "removed": gone, "texts": found}
    show(as_json, data, "\n".join(lines))

"""`t2r prune`: remove the least needed parts of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_export.cli.output import force_option, note_each, size, table
from t2r_export.cli.spelled import Inside
from t2r_export.config.options import options
from t2r_export.config.pruning import KINDS, PruneConfig
from t2r_export.paths import check_outputs, existing_model, text_files
from t2r_runtime.cli.output import json_option, note, show

FILE = click.Path(path_type=Path)


@click.command("prune")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--share",
    type=Inside("share", options(PruneConfig)),
    required=True,
    is_eager=True,
    help=f"Shares to remove, such as ffn=0.25,state=0.5, of {', '.join(KINDS)}; help explains them.",
)
@click.option("--data", type=FILE, required=True, help="Text on which what can go is measured.")
@force_option
@json_option
def command(source: Path, out: Path, share: dict[str, Any], data: Path, force: bool, as_json: bool) -> None:
    """Remove the least needed parts of SOURCE, measured on a text; write OUT.

    Train OUT afterwards: t2r finetune OUT BETTER --teacher SOURCE. For example --share heads=0.25,ffn=0.5.
    """
    config = PruneConfig(**share)
    text_files([data])
    check_outputs([("checkpoint", out)], [existing_model(source), data], force)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.data.corpus import read_corpus
    from t2r_export.pruning.prune import provenance, prune

    loaded = checkpoint.load(source)
    note_each(loaded.notes)
    corpus = read_corpus([data], loaded.tokenizer, loaded.config)
    found = prune(loaded.model, config, corpus, note)
    done = provenance(loaded, found, source=source.name, text_sha256=corpus.sha256, shares=config.shares)
    checkpoint.save(out, found.model, loaded.tokenizer, done, loaded.source_tokenizer)
    heads = ["kind", "layer", "kept", "of", "cost"]
    rows = [[kind, layer, kept, of, f"{cost:+.4f}"] for kind, layer, kept, of, cost in found.rows()]
    weights, states, nats = found.bytes, found.state_bytes, found.nats
    report = {"out": out, "shares": config.shares, "nats": nats, "bytes": weights, "state_bytes": states}
    show(
        as_json,
        {**report, "chosen": [dict(zip(heads, row, strict=True)) for row in found.rows()]},
        f"{table(rows, heads)}\n"
        f"{out}: weights {size(weights[0])} to {size(weights[1])}, state {size(states[0])} to {size(states[1])}; "
        f"{nats[1]:.4f} nats/token before finetuning, {nats[1] - nats[0]:+.4f} "
        f"({sum(row[-1] for row in found.rows()):+.4f} were expected)",
    )

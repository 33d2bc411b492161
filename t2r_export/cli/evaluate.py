"""`t2r evaluate`: nats per token of a text, or BLEU of a translator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_export.cli.fields import fields, reading
from t2r_export.cli.given import check_given
from t2r_export.cli.output import base_option, note_each, shorter, table, with_error
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import EVAL_TOKENS, LEAST_LENGTH, LENGTH, PARTS, FinetuneConfig, usual_length
from t2r_export.paths import ADAPTERS, check_base, existing_model, text_files
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.cli.score import command as score
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.outputs import GRAPHS
from t2r_runtime.session.refusals import existing_graph

FILE = click.Path(path_type=Path)
HEAD = ("length", "nats/token", "perplexity", "its last quarter", "tokens")


@click.command("evaluate")
@click.argument("model", type=FILE)
@click.argument("text", type=FILE)
@click.option(
    "--lengths",
    metavar="T,T",
    help=f"Window lengths in tokens.  [default: {LENGTH}, or the model's context if that is shorter, or the rows' of "
    "a .npy]",
)
@click.option(
    "--part",
    type=click.Choice((*PARTS, "all")),
    default="test",
    show_default=True,
    help="Part of the text, split as by t2r finetune.",
)
@click.option(
    "--windows",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Maximum number of windows per length; 0 is all.",
)
@click.option(
    "--eval-tokens",
    type=click.IntRange(0),
    metavar="N",
    default=EVAL_TOKENS,
    show_default=True,
    help="Maximum number of predicted tokens per length, in evenly spaced windows or pairs; 0 is all.",
)
@click.option(
    "--bleu",
    type=click.IntRange(1),
    metavar="BEAM",
    help="Translate the sources of TEXT with this beam width and compute BLEU; 1 is greedy.",
)
@click.option(
    "--teacher",
    type=FILE,
    metavar="MODEL",
    help="Also the nats above this model on the same windows, with the standard error of the paired differences.",
)
@fields(ExportConfig, "past_end")
@fields(FinetuneConfig, "split")
@providers.option
@base_option
@json_option
def command(
    model: Path,
    text: Path,
    lengths: str | None,
    part: str,
    split: dict[str, Any] | None,
    windows: int,
    eval_tokens: int,
    bleu: int | None,
    teacher: Path | None,
    past_end: str,
    provider: providers.Provider,
    base: Path | None,
    as_json: bool,
) -> None:
    """Nats per token of MODEL (a model.pt, Hugging Face folder, .gguf, .adapter or exported graph) on TEXT.

    For a checkpoint TEXT may be all that t2r finetune --data takes. The tokens are cached, see t2r tokenize.

    ± is the standard error of the mean over windows or pairs. The last quarter of the windows is shown separately: a
    model trained on short windows may degrade there.

    A graph reads TEXT, a file or - for stdin, once from its start, one token per step. --json includes the
    log-probability of each token given the tokens before it.

    A translator is measured on all pairs of TEXT, a .tsv, per target token; with --bleu, MODEL may be its graph.
    """
    check_given()
    if text.suffix == ".tsv":
        return show_pairs(model, text, as_json, bleu=bleu is not None, beam=bleu or 1, eval_tokens=eval_tokens)
    if model.suffix in GRAPHS:
        click.get_current_context().invoke(score, graph=model, text=text, provider=provider, as_json=as_json)
        return
    sizes, how = window_lengths(lengths), reading(split)
    if not (split or {}).get("pack", True):
        raise UserError("windows across documents, as every evaluation reads", "pack=false", "leave it out")
    existing_model(model)
    check_base(model, base)
    if teacher is not None:
        existing_model(teacher)
    text_files([text])

    from t2r_export.checkpoints import checkpoint
    from t2r_export.data.corpus import read_corpus
    from t2r_export.model.device import choose_device
    from t2r_export.quality.evaluate import evaluate_lengths

    loaded = checkpoint.load(model, base=base)
    note_each(loaded.warnings)
    loaded.model.end_positions(past_end)
    with progress("tokens", 0) as on_progress:
        corpus = read_corpus([text], loaded.tokenizer, loaded.config, *how, on_progress=on_progress)
    sizes = sizes or [corpus.row or shorter(usual_length(loaded.config.max_positions))]
    device = choose_device("auto")
    beside = None if teacher is None else checkpoint.load(teacher, base=base if teacher.suffix == ADAPTERS else None)
    other = None if beside is None else beside.model.to(device)
    found = evaluate_lengths(loaded.model.to(device), corpus.part(part), sizes, windows, eval_tokens, other)
    rows = [
        [
            e.length,
            with_error(e.nats, e.standard_error),
            f"{e.perplexity:.2f}",
            with_error(e.end_nats, e.end_standard_error),
            f"{e.tokens:,}",
            *([] if e.above is None else [with_error(e.above, e.above_standard_error, "+")]),
        ]
        for e in found
    ]
    show(
        as_json,
        {"model": model, "part": part, "lengths": found},
        table(rows, [*HEAD, *([] if teacher is None else ["above the teacher"])]),
    )


def window_lengths(text: str | None) -> list[int]:
    """The value of --lengths; empty if there is none. Raises UserError for other than integers from LEAST_LENGTH."""
    try:
        found = [] if text is None else [int(part) for part in text.split(",")]
        if min(found, default=LEAST_LENGTH) < LEAST_LENGTH:
            raise ValueError
    except ValueError:
        expected = f"lengths as integers from {LEAST_LENGTH}, separated by commas"
        raise UserError(expected, repr(text), "correct --lengths") from None
    return found


def show_pairs(model: Path, pairs: Path, as_json: bool, **options: Any) -> None:
    """Evaluate a translator on pairs."""
    (existing_graph if model.suffix in GRAPHS else existing_model)(model)
    existing_file(pairs, "a file of pairs to measure on")

    from t2r_export.data.pairs import read_pairs
    from t2r_export.quality.evaluate_pairs import evaluate_pairs

    texts = read_pairs(pairs)
    with progress("sentences translated", len(texts) if options["bleu"] else 0) as on_progress:
        found = evaluate_pairs(model, texts, on_progress=on_progress, **options)
    note_each(found.notes)
    lines = []
    if (nats := found.text) is not None:
        mean = with_error(nats.nats, nats.standard_error)
        lines.append(f"{mean} nats/token, perplexity {nats.perplexity:.2f}, {nats.tokens:,} tokens")
    if (score := found.bleu) is not None:
        lines.append(f"BLEU {score.score:.2f}, beam {score.beam}, {score.sentences:,} sentences  {score.signature}")
    show(as_json, {"model": model, "pairs": pairs, "text": found.text, "bleu": found.bleu}, "\n".join(lines))

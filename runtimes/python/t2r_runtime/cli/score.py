"""`t2r-run score`: how well an exported graph predicts a text."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_runtime.cli import bulk, providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.text.texts import read_text

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Tokenizer

MAX_TEXT = 1 << 26  # bytes: each token is a run of the graph


@click.command("score")
@click.argument("graph", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path), required=False)
@providers.threads_option
@providers.option
@bulk.option('a "text"')
@json_option
def command(
    graph: Path,
    text: Path | None,
    threads: int | None,
    provider: providers.Provider,
    jsonl: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Nats per token of GRAPH, an exported .onnx file, on TEXT, a file or - for stdin.

    The text is read once from its start, one token per step. --json includes the log-probability of each token given
    the tokens before it.
    """
    from t2r_runtime import Tokenizer

    existing_graph(graph)
    if (text is None) == (jsonl is None):
        raise click.UsageError("Give one of TEXT and '--jsonl'.")
    written = "" if text is None else read_text(text, most=MAX_TEXT)
    decoder = providers.decoder_alone(graph, provider, threads)
    tokenizer = Tokenizer.of(decoder.signature)
    if jsonl is not None:
        with bulk.Bulk(jsonl, graph) as lines:
            for number, line in lines.texts("text"):
                with lines.answering(number):
                    lines.put(number, _scored(decoder, tokenizer, line))
    else:
        result = _scored(decoder, tokenizer, written, shown=True)
        nats, count = result["nats"], len(result["log_probabilities"])
        perplexity = f"{math.exp(nats):.2f}" if nats < 500 else "inf"
        bits = f"{result['bits_per_byte']:.4f} bits/byte"
        line = f"{nats:.4f} nats/token, perplexity {perplexity}, {bits}, {count:,} tokens"
        show(as_json, {**result, "placement": decoder.placement}, line)
    providers.note_split(provider.name, decoder.placement)


def _scored(decoder: Decoder, tokenizer: Tokenizer, text: str, shown: bool = False) -> dict[str, Any]:
    """The scores of a text. Raises UserError if it has fewer than two tokens or more than the model has positions."""
    from t2r_runtime.decode.score import score

    ids = tokenizer.encode(text)
    with progress("tokens scored", max(len(ids) - 1, 0)) if shown else contextlib.nullcontext() as on_progress:
        found = score(decoder, ids, on_progress or (lambda done: None))
    nats, bits = -float(found.mean()), -float(found.sum()) / math.log(2) / max(len(text.encode()), 1)
    return {"nats": nats, "bits_per_byte": bits, "tokens": ids, "log_probabilities": found.tolist()}

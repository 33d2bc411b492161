"""`t2r score`: how well an exported graph predicts a text, on any provider: what `evaluate` is for a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import click

from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.text.texts import read_text

MAX_TEXT = 1 << 26  # bytes: each of its tokens is a run of the graph


@click.command("score")
@click.argument("graph", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--threads", type=click.IntRange(min=1), help="Threads per operator. Default: by the size of the graph.")
@providers.options
@json_option
def command(
    graph: Path,
    text: Path,
    threads: int | None,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    as_json: bool,
) -> None:
    """Nats per token of GRAPH, an exported .onnx file, on TEXT, a file or - for stdin.

    The text is read once from its start, state to state, a token a step. With --json, the log-probability of each token
    given those before it.
    """
    from t2r_runtime import Tokenizer
    from t2r_runtime.decode.score import score

    existing_graph(graph)
    written = read_text(text, most=MAX_TEXT)
    decoder = providers.decoder_alone(graph, provider, threads, provider_options, allow_fallback)
    ids = Tokenizer.of(decoder.signature).encode(written)
    with progress("tokens scored", max(len(ids) - 1, 0)) as on_progress:
        found = score(decoder, ids, on_progress)
    nats = -float(found.mean())
    bits = -float(found.sum()) / math.log(2) / len(written.encode())
    result = {"nats": nats, "bits_per_byte": bits, "tokens": ids, "log_probabilities": found.tolist()}
    perplexity = f"{math.exp(nats):.2f}" if nats < 500 else "inf"
    line = f"{nats:.4f} nats/token, perplexity {perplexity}, {bits:.4f} bits a byte, {found.size:,} tokens"
    show(as_json, {**result, "placement": decoder.placement}, line)
    providers.note_split(provider, decoder.placement)

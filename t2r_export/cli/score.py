"""`t2r score`: how well an exported graph predicts a text, on any provider: what `evaluate` is for a checkpoint."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import click

from t2r_export.cli import providers
from t2r_export.cli.output import json_option, show
from t2r_export.cli.progress import progress
from t2r_export.paths import existing_graph
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

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
    from t2r_runtime.score import score

    existing_graph(graph)
    written = read_text(text)
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


def read_text(path: Path) -> str:
    """The text of a file, or of stdin.

    Raises:
        UserError: no such file, more than `MAX_TEXT` bytes, or no UTF-8.
    """
    if str(path) == "-":
        raw = sys.stdin.buffer.read(MAX_TEXT + 1)
    else:
        with existing_file(path, "a text").open("rb") as file:
            raw = file.read(MAX_TEXT + 1)
    if len(raw) > MAX_TEXT:
        raise UserError(f"a text of at most {MAX_TEXT >> 20} MiB", "more", "cut it")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"a text in UTF-8 in {path}", f"another byte at {error.start}", "convert it") from error

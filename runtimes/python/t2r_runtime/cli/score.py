"""`t2r-run score`: how well an exported graph predicts a text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_runtime.cli import bulk, providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.text.texts import read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from t2r_runtime import Decoder, Tokenizer
    from t2r_runtime.decode.text import Text

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
    rows: int,
    as_json: bool,
) -> None:
    """Nats per token of GRAPH, an exported .onnx file, on TEXT, a file or - for stdin.

    The text is read once from its start, one token per step. --json includes the log-probability of each token given
    the tokens before it.
    """
    from t2r_runtime import Tokenizer

    existing_graph(graph)
    if (text is None) == (jsonl is None):
        raise UserError("one of TEXT and --jsonl", "neither" if text is None else "both", "pass one")
    if jsonl is None:
        bulk.refuse_rows()
    written = "" if text is None else read_text(text, most=MAX_TEXT)
    decoder = providers.decoder_alone(graph, provider, threads)
    tokenizer = Tokenizer.of(decoder.signature)
    if jsonl is not None:
        with bulk.Bulk(jsonl, graph) as lines:
            _answer(lines, decoder, tokenizer, rows)
    else:
        result = _scored(decoder, tokenizer, written, shown=True)
        nats, count = result["nats"], len(result["log_probabilities"])
        perplexity = f"{math.exp(nats):.2f}" if nats < 500 else "inf"
        bits = f"{result['bits_per_byte']:.4f} bits/byte"
        line = f"{nats:.4f} nats/token, perplexity {perplexity}, {bits}, {count:,} tokens"
        show(as_json, {**result, "placement": decoder.placement}, line)
    providers.note_split(provider.name, decoder.placement)


def _answer(lines: bulk.Bulk, decoder: Decoder, tokenizer: Tokenizer, rows: int) -> None:
    """Score every line, `rows` of them side by side."""
    from t2r_runtime import Sampling
    from t2r_runtime.decode.pool import Pool

    texts = lines.texts("text")
    if rows == 1:  # works with any graph
        for number, text in texts:
            with lines.answering(number):
                lines.put(number, _scored(decoder, tokenizer, text))
        return
    pool = Pool(decoder, rows)

    def add(line: _Line) -> Text:
        return pool.add(line.ids, 0, [Sampling()], watch=[line.watch], scored=True)[0]

    bulk.side_by_side(lines, _encoded(lines, tokenizer, texts), pool, rows, add)


def _encoded(lines: bulk.Bulk, tokenizer: Tokenizer, texts: Iterable[tuple[int, str]]) -> Iterator[_Line]:
    from t2r_runtime.decode.score import require_text

    for number, text in texts:
        with lines.answering(number):
            ids = tokenizer.encode(text)
            require_text(len(ids))
            yield _Line(number, text, ids)


@dataclass
class _Line:
    """A line of --jsonl being scored."""

    number: int
    text: str
    ids: list[int]
    found: list[float] = field(default_factory=list)

    def watch(self, logits: NDArray[np.float32], token: int) -> None:
        """Add the log-probability of a token."""
        from t2r_runtime.decode.score import log_probabilities

        self.found.append(float(log_probabilities(logits)[token]))

    def token(self, token: int) -> bool:
        """Nothing is generated."""
        return True

    def answer(self) -> dict[str, Any]:
        return _numbers(self.text, self.ids, self.found)


def _scored(decoder: Decoder, tokenizer: Tokenizer, text: str, shown: bool = False) -> dict[str, Any]:
    """The scores of a text. Raises UserError if it has fewer than two tokens or more than the model has positions."""
    from t2r_runtime.decode.score import score

    ids = tokenizer.encode(text)
    with progress("tokens scored", max(len(ids) - 1, 0)) if shown else contextlib.nullcontext() as on_progress:
        return _numbers(text, ids, score(decoder, ids, on_progress or (lambda done: None)).tolist())


def _numbers(text: str, ids: list[int], found: list[float]) -> dict[str, Any]:
    total = math.fsum(found)
    bits = -total / math.log(2) / max(len(text.encode()), 1)
    return {"nats": -total / len(found), "bits_per_byte": bits, "tokens": ids, "log_probabilities": found}

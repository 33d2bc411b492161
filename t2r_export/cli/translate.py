"""`t2r translate`: a line of stdin, which is a sentence, becomes a line on stdout, its translation.

stdout holds the translations and nothing else, in the order of the lines, each as soon as it is there. An empty line is
an empty line.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_export.cli import providers
from t2r_export.cli.output import show
from t2r_runtime.errors import UserError
from t2r_runtime.texts import STDIN, decode_lines

if TYPE_CHECKING:
    from t2r_runtime import Beam, Tokenizer, Translation, Translator

Write = Callable[[str, Sequence["Translation"]], None]


@click.command("translate")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option(
    "--beam",
    "width",
    type=click.IntRange(min=1),
    help="Width of the beam; 1 is greedy.  [default: the graph's, or 4]",
)
@click.option(
    "--n-best",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Translations of each line, at most the beam's width; above 1, each is a line after its score and a tab.",
)
@click.option(
    "--length-penalty",
    type=float,
    help="A score is a translation's log-probability over its length to this power.  [default: the graph's, or 1]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Most tokens of a translation.  [default: the graph's, or 256; fewer where the model's positions end]",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=1, show_default=True, help="Sentences translated side by side."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads per operator. Default: by the size of the graph.")
@providers.options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line: source and translations.")
def command(
    graph: Path,
    width: int | None,
    n_best: int,
    length_penalty: float | None,
    max_tokens: int | None,
    batch_size: int,
    threads: int | None,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    as_json: bool,
) -> None:
    """Translate lines of text on stdin with GRAPH, an exported .onnx file of a translator."""
    from t2r_runtime import Beam, Tokenizer

    beam = Beam(width, length_penalty, max_tokens=max_tokens, n_best=n_best)
    translator = providers.translator(graph, provider, threads, provider_options, allow_fallback)
    target = Tokenizer.of(translator.signature)

    def write(line: str, best: Sequence[Translation]) -> None:
        texts = [target.decode(one.tokens) for one in best]
        if as_json:
            told = [{"text": text, **one._asdict()} for text, one in zip(texts, best, strict=True)]
            return show(True, {"source": line, "translations": told}, "")
        scores = [f"{one.score:.4f}\t" if n_best > 1 else "" for one in best]
        for score, text in zip(scores or [""], texts or [""], strict=True):
            click.echo(score + " ".join(text.splitlines()))

    Lines(translator, Tokenizer.of_source(translator.signature), batch_size, write).translate(beam)
    providers.note_split(provider, translator.placement)


class Lines:
    """The lines of stdin, which are read no further than there is room to translate them.

    Args:
        write: takes each line with its n best translations, in the lines' order; an empty line has none.
    """

    def __init__(self, translator: Translator, tokenizer: Tokenizer, batch: int, write: Write) -> None:
        self._translator, self._tokenizer, self._batch, self._write = translator, tokenizer, batch, write
        self._waiting: collections.deque[str] = collections.deque()  # read, and not written

    def translate(self, beam: Beam) -> None:
        """All of them.

        Raises:
            UserError: a line that is no UTF-8, or longer than the model's sources.
        """
        for best in self._translator.translate(self._sources(), beam, self._batch):
            self._write(self._waiting.popleft(), best)
            self._pass_empty()

    def _sources(self) -> Iterator[Sequence[int]]:
        lines = decode_lines(iter(sys.stdin.buffer.readline, b""), STDIN)
        for number, line in enumerate(lines, 1):
            self._waiting.append(line)
            self._pass_empty()
            if line.strip():
                yield self._encoded(line, number)

    def _encoded(self, line: str, number: int) -> Sequence[int]:
        try:
            ids = self._tokenizer.encode(line)
            self._translator.checked(ids)
        except UserError as error:
            raise UserError(error.expected, f"{error.received} in line {number}", error.do) from error
        return ids

    def _pass_empty(self) -> None:
        """Write empty lines before which no other waits."""
        while self._waiting and not self._waiting[0].strip():
            self._write(self._waiting.popleft(), ())

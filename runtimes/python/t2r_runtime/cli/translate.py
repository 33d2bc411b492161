"""`t2r translate`: a line of stdin becomes a line on stdout, the translations of its sentences.

stdout holds the translations and nothing else, in the order of the lines, each as soon as it is there. An empty line is
an empty line.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_runtime.cli import providers
from t2r_runtime.cli.output import note, show
from t2r_runtime.errors import UserError
from t2r_runtime.session.segment import repeats, split_sentences
from t2r_runtime.text.texts import STDIN, decode_lines

if TYPE_CHECKING:
    from t2r_runtime import Beam, Tokenizer, Translation, Translator

Write = Callable[["Line"], None]


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
@click.option(
    "--no-split",
    "whole",
    is_flag=True,
    help="Translate each line as one source. Default: sentence by sentence, unless --n-best is above 1.",
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
    whole: bool,
    threads: int | None,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    as_json: bool,
) -> None:
    """Translate lines of text on stdin with GRAPH, an exported .onnx file of a translator."""
    from t2r_runtime import Beam, Tokenizer
    from t2r_runtime.translate.search import Rules

    beam = Beam(width, length_penalty, max_tokens=max_tokens, n_best=n_best)
    translator = providers.translator(graph, provider, threads, provider_options, allow_fallback)
    target = Tokenizer.of(translator.signature)

    most = Rules(beam, translator.signature).max_tokens
    ends = translator.signature.eos_tokens

    def write(line: Line) -> None:
        told = [_joined(each, target, most, ends) for each in zip(*line.found, strict=True)]
        for key, what in (("cut", f"was cut at {most} tokens"), ("repeats", "repeats itself")):
            if any(one[key] for one in told[:1]):
                note(f"line {line.number}: the translation {what}")
        if as_json:
            return show(True, {"source": line.text, "translations": told}, "")
        scores = [f"{one['score']:.4f}\t" if n_best > 1 else "" for one in told]
        for score, one in zip(scores or [""], told or [{"text": ""}], strict=True):
            click.echo(score + " ".join(one["text"].splitlines()))

    Lines(translator, Tokenizer.of_source(translator.signature), batch_size, whole or n_best > 1, write).translate(beam)
    providers.note_split(provider, translator.placement)


def _joined(sentences: Sequence[Translation], target: Tokenizer, most: int, ends: Sequence[int]) -> dict[str, Any]:
    """What is said of the translation of a line: its text is that of its sentences with a space between them.

    Its score is the mean of theirs, weighted by their tokens.
    """
    tokens = [one.tokens for one in sentences]
    bodies = [each[:-1] if each[-1:] and each[-1] in ends else each for each in tokens]
    return {
        "text": " ".join(target.decode(each) for each in tokens),
        "tokens": [token for each in tokens for token in each],
        "score": sum(one.score * len(one.tokens) for one in sentences) / max(1, sum(map(len, tokens))),
        "cut": any(len(each) >= most for each in tokens),
        "repeats": any(map(repeats, bodies)),
    }


@dataclass
class Line:
    """A line of stdin: the number of its sentences, and the n best translations of those that are done."""

    text: str
    number: int
    sentences: int
    found: list[Sequence[Translation]] = field(default_factory=list)


class Lines:
    """The lines of stdin, which are read no further than there is room to translate them.

    Args:
        whole: a line is one source; else each of its sentences is.
        write: takes each line with its translations, in the lines' order; an empty line has none.
    """

    def __init__(self, translator: Translator, tokenizer: Tokenizer, batch: int, whole: bool, write: Write) -> None:
        self._translator, self._tokenizer, self._batch, self._write = translator, tokenizer, batch, write
        self._whole = whole
        self._waiting: collections.deque[Line] = collections.deque()  # read, and not written

    def translate(self, beam: Beam) -> None:
        """All of them.

        Raises:
            UserError: a line that is not UTF-8, or a source that is longer than the model's.
        """
        for best in self._translator.translate(self._sources(), beam, self._batch):
            self._waiting[0].found.append(best)
            self._pass_done()

    def _sources(self) -> Iterator[Sequence[int]]:
        lines = decode_lines(iter(sys.stdin.buffer.readline, b""), STDIN)
        for number, line in enumerate(lines, 1):
            sentences = ([line] if line.strip() else []) if self._whole else split_sentences(line)
            self._waiting.append(Line(line, number, len(sentences)))
            self._pass_done()
            for sentence in sentences:
                yield self._encoded(sentence, number)

    def _encoded(self, sentence: str, number: int) -> Sequence[int]:
        try:
            ids = self._tokenizer.encode(sentence)
            self._translator.checked(ids)
        except UserError as error:
            raise UserError(error.expected, f"{error.received} in line {number}", error.do) from error
        return ids

    def _pass_done(self) -> None:
        """Write the lines before which no other waits; an empty one is done at once."""
        while self._waiting and len(self._waiting[0].found) == self._waiting[0].sentences:
            self._write(self._waiting.popleft())

"""`t2r-run translate`: translate stdin line by line, split into sentences.

Only the translations go to stdout, in the order of the lines, each as soon as it is ready. Empty lines stay empty.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_runtime.cli import bulk, providers
from t2r_runtime.cli.output import note, show
from t2r_runtime.errors import UserError
from t2r_runtime.session.segment import split_sentences
from t2r_runtime.text.texts import STDIN, decode_lines

if TYPE_CHECKING:
    from t2r_runtime import Tokenizer, Translation, Translator
    from t2r_runtime.translate.texts import Texts

Write = Callable[["Line"], None]
Refuse = Callable[[int, UserError], None]


@click.command("translate")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option(
    "--beam", "width", type=click.IntRange(min=1), help="Beam width; 1 is greedy.  [default: the graph's, or 4]"
)
@click.option(
    "--n-best",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of translations per line, at most the beam width; above 1, one per line, after its score and a tab.",
)
@click.option(
    "--length-penalty",
    type=float,
    help="Divide log-probabilities by the length to this power for the score.  [default: the graph's, or 1]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Maximum tokens per translation.  [default: the graph's, or 256; fewer where the model's positions end]",
)
@click.option(
    "--no-split",
    "whole",
    is_flag=True,
    help="Do not split lines into sentences. Default: split, unless --n-best is above 1.",
)
@click.option(
    "--check-numbers",
    is_flag=True,
    help="Prefer translations of the beam that have the source's numbers and names and no other numbers, and report "
    'what differs, on stderr and as "missing" and "added" in JSON.',
)
@click.option(
    "--no-copy",
    is_flag=True,
    help="Do not make the search copy the source's numbers and unknown names.",
)
@bulk.option('a "source"', "sentences, of stdin or of --jsonl, translated side by side")
@providers.threads_option
@providers.option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: source and translations.")
def command(
    graph: Path,
    width: int | None,
    n_best: int,
    length_penalty: float | None,
    max_tokens: int | None,
    rows: int,
    whole: bool,
    check_numbers: bool,
    no_copy: bool,
    jsonl: tuple[Path, Path] | None,
    threads: int | None,
    provider: providers.Provider,
    as_json: bool,
) -> None:
    """Translate lines of stdin with GRAPH, an exported .onnx file of a translator."""
    from t2r_runtime import Beam, Tokenizer
    from t2r_runtime.translate.texts import Texts

    beam = Beam(width, length_penalty, max_tokens=max_tokens, n_best=n_best, copy=False if no_copy else None)
    translator = providers.translator(graph, provider, threads)
    source, target = Tokenizer.of_source(translator.signature), Tokenizer.of(translator.signature)
    texts = Texts(source, target, translator.signature, beam, check_numbers)

    def described(line: Line) -> list[dict[str, Any]]:
        found = texts.join(line.text, line.found)
        for best in found[:1]:
            for key, what in (("cut", f"was cut at {texts.max_tokens} tokens"), ("repeats", "repeats itself")):
                if best[key]:
                    note(f"line {line.number}: the translation {what}")
            for key, what in (("missing", "lacks"), ("added", "adds")):
                for word in best.get(key, []):
                    note(f"line {line.number}: the translation {what} {word}")
        return found

    def write(line: Line) -> None:
        found = described(line)
        if as_json:
            return show(True, {"source": line.text, "translations": found}, "")
        scores = [f"{one['score']:.4f}\t" if n_best > 1 else "" for one in found]
        for score, one in zip(scores or [""], found or [{"text": ""}], strict=True):
            click.echo(score + " ".join(one["text"].splitlines()))

    lines = Lines(translator, source, rows, whole or n_best > 1, texts)
    if jsonl is None:
        typed = decode_lines(iter(sys.stdin.buffer.readline, b""), STDIN)
        lines.translate(enumerate(typed, 1), write, _refuse)
    else:
        with bulk.Bulk(jsonl, graph) as answers:
            lines.translate(
                answers.texts("source"),
                lambda line: answers.put(line.number, {"translations": described(line)}),
                answers.put,
            )
    providers.note_split(provider.name, translator.placement)


def _refuse(number: int, error: UserError) -> None:
    raise UserError(error.expected, f"{error.received} in line {number}", error.do) from error


@dataclass
class Line:
    """A line of stdin, its sentences, and the n best translations of each finished one."""

    text: str
    number: int
    sentences: list[str]
    found: list[Sequence[Translation]] = field(default_factory=list)


class Lines:
    """Translates lines, and reads no more of them than fit the batch.

    Args:
        whole: translate each line as one source, without splitting it into sentences.
        texts: chooses the translations of a sentence.
    """

    def __init__(self, translator: Translator, tokenizer: Tokenizer, batch: int, whole: bool, texts: Texts) -> None:
        self._translator, self._tokenizer, self._batch, self._whole = translator, tokenizer, batch, whole
        self._texts = texts
        self._waiting: collections.deque[Line] = collections.deque()  # read and not yet written

    def translate(self, lines: Iterable[tuple[int, str]], write: Write, refuse: Refuse) -> None:
        """Translate all lines.

        Args:
            lines: pairs of line number and text.
            write: called with each translated line, in order; an empty line has no translations.
            refuse: called with the number of a line that cannot be translated, and the error.
        """
        for best in self._translator.translate(self._sources(lines, write, refuse), self._texts.beam, self._batch):
            line = self._waiting[0]
            line.found.append(self._texts.choose(line.sentences[len(line.found)], best))
            self._pass_done(write)

    def _sources(self, lines: Iterable[tuple[int, str]], write: Write, refuse: Refuse) -> Iterator[Sequence[int]]:
        for number, line in lines:
            sentences = ([line] if line.strip() else []) if self._whole else split_sentences(line)
            try:
                sources = list(map(self._encoded, sentences))
            except UserError as error:
                refuse(number, error)
            else:
                self._waiting.append(Line(line, number, sentences))
                self._pass_done(write)
                yield from sources

    def _encoded(self, sentence: str) -> Sequence[int]:
        ids = self._tokenizer.encode(sentence)
        self._translator.checked(ids)
        return ids

    def _pass_done(self, write: Write) -> None:
        """Write the finished lines at the head of the queue; an empty line is finished at once."""
        while self._waiting and len(self._waiting[0].found) == len(self._waiting[0].sentences):
            write(self._waiting.popleft())

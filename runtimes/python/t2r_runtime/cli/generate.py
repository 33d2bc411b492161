"""`t2r generate`: continue a text with an exported graph.

stdout holds the new text and nothing else; the prompt goes to stderr, so that a terminal shows both. Where GRAPH has a
generation graph and stdout is not a terminal, that graph generates the text in one run; the text is the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_runtime.cli import bulk, providers, sampling
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.cli.score import MAX_TEXT
from t2r_runtime.contract.signature import GENERATE
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.session.tuning import PREFILL_FROM
from t2r_runtime.text.stops import Until
from t2r_runtime.text.texts import read_text

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Sampling, Tokenizer


@click.command("generate")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--prompt", default="", metavar="TEXT", help="Text to continue; an empty one starts from BOS.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="File with the text to continue; - is stdin.")
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help="Text before which the new text ends. Repeatable.")
@click.option("--ids", metavar="1,2,3", help="Prompt as token ids; the output is token ids too.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Largest number of tokens to generate; 0 only reads the prompt.",
)
@click.option(
    "--draft",
    metavar="lookup|GRAPH",
    help="Guess several tokens and check them in one run: by what this text has had before, or by a smaller model.",
)
@sampling.options
@providers.options
@bulk.option('a "prompt" or "ids"')
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Lines of --jsonl that are continued side by side.",
)
@click.option("--save-state", type=click.Path(path_type=Path), help="File to save the state after the text to.")
@click.option("--load-state", type=click.Path(path_type=Path), help="File of a saved state to continue from.")
@json_option
def command(
    graph: Path,
    prompt: str,
    prompt_file: Path | None,
    stops: tuple[str, ...],
    ids: str | None,
    max_tokens: int,
    draft: str | None,
    rules: Sampling,
    threads: int | None,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    jsonl: tuple[Path, Path] | None,
    batch_size: int,
    save_state: Path | None,
    load_state: Path | None,
    as_json: bool,
) -> None:
    """Continue a text with GRAPH, an exported .onnx file; the new text goes to stdout."""
    from t2r_runtime import Tokenizer

    existing_graph(graph)
    if jsonl is not None and (prompt or prompt_file or ids or draft or save_state or load_state):
        raise click.UsageError("--jsonl has its prompts in IN, and takes neither states nor --draft.")
    if load_state is not None:
        existing_file(load_state, "a saved state")
    if save_state is not None:
        from t2r_runtime.session import snapshot

        snapshot.check_place(save_state, graph)  # it may be the one that was loaded
    if ids is not None:
        _numbers(ids, goes_on=load_state is not None)
    if sum((bool(prompt), prompt_file is not None, ids is not None)) > 1:
        raise UserError("one of --prompt, --prompt-file and --ids", "several", "leave out the others")
    if stops and (ids is not None or "" in stops):
        raise UserError("texts for --stop, and text to find them in", "none, or --ids", "leave it out")
    if prompt_file is not None:
        prompt = read_text(prompt_file, most=MAX_TEXT)
    decoder = providers.decoder_alone(
        graph, provider, threads, provider_options, allow_fallback, prefill_from=PREFILL_FROM
    )
    rules = sampling.of_graph(rules, decoder.signature)
    if jsonl is not None:
        with bulk.Bulk(jsonl, graph) as lines:
            _answer(lines, decoder, max_tokens, rules, stops, batch_size)
        return providers.note_split(provider, decoder.placement)
    guess = _guess(draft, threads)
    chosen = decoder.load_state(load_state) if load_state is not None else None
    before, goes_on = ([], False) if chosen is None else ([chosen], True)
    tokenizer = None if ids is not None else Tokenizer.of(decoder.signature)
    new = _numbers(ids, goes_on) if ids is not None else _encode(tokenizer, prompt, decoder, goes_on)
    read = [*before, *new]
    printer = _Printer(tokenizer, read, prompt, stops, silent=as_json)
    started = time.perf_counter()
    written: list[int] = []
    if max_tokens:
        in_one_run = GENERATE in decoder.signature.graphs and draft is None
        watched = bool(stops) or (not as_json and (not in_one_run or sys.stdout.isatty()))
        callback = printer.token if watched else None
        written = decoder.generate(read, max_tokens, rules, callback, guess)
        for token in () if watched else written:
            printer.token(token)
    elif save_state is None:
        decoder.prefill(read)
    elif read[1:]:
        decoder.prefill(read[:-1])
    seconds = time.perf_counter() - started
    printer.end()
    if save_state is not None:
        decoder.save_state(save_state, [*read, *written][-1])  # which has not been read yet
    count = len(read) + len(written)
    if as_json:
        result = {"prompt": read, "tokens": written, "text": printer.text, "seconds": seconds}
        show(True, {**result, "position": decoder.position, "placement": decoder.placement}, "")
    else:
        note(f"\n{count} tokens in {seconds:.2f} s, {count / seconds:.0f} tokens/s")
    providers.note_split(provider, decoder.placement)


@dataclass
class _Text:
    """A line that is continued."""

    number: int
    read: list[int]
    printer: _Printer
    written: list[int] = field(default_factory=list)

    def token(self, token: int) -> bool:
        """Whether the text goes on."""
        self.written.append(token)
        return self.printer.token(token)

    def answer(self) -> bulk.Given:
        self.printer.end()
        return {"tokens": self.written, "text": self.printer.text}


def _answer(
    lines: bulk.Bulk, decoder: Decoder, max_tokens: int, rules: Sampling, stops: Sequence[str], width: int
) -> None:
    """Continue every line as it would be alone, `width` of them side by side."""
    from t2r_runtime import Batch
    from t2r_runtime.decode.batch import NOT_FINITE

    texts = _texts(lines, decoder, stops)
    if width == 1:  # of any graph
        for text in texts:
            decoder.reset()
            with lines.answering(text.number):
                found = decoder.generate(text.read, max_tokens, rules, text.token if stops else None)
                for token in () if stops else found:
                    text.token(token)
                lines.put(text.number, text.answer())
        return
    batch, going = Batch(decoder), dict[int, _Text]()
    while True:
        while len(going) < width and (new := next(texts, None)) is not None:
            with lines.answering(new.number):
                going[batch.add(new.read, max_tokens, rules)] = new
        if not going:
            return
        for handle, token in batch.step().items():
            text = going[handle]
            if token == NOT_FINITE:
                lines.put(text.number, UserError("finite logits", "others", "export the model again"))
            elif not text.token(token) and handle in batch.sequences:
                batch.remove(handle)
            if handle not in batch.sequences:
                del going[handle]
                if token != NOT_FINITE:
                    lines.put(text.number, text.answer())


def _texts(lines: bulk.Bulk, decoder: Decoder, stops: Sequence[str]) -> Iterator[_Text]:
    from t2r_runtime import Tokenizer
    from t2r_runtime.session.stepper import token_ids

    tokenizer = None if decoder.signature.tokenizer is None else Tokenizer.of(decoder.signature)
    for number, given in lines:
        with lines.answering(number):
            if "ids" in given:
                read, reader = token_ids(given["ids"], decoder.signature, 1).array[0].tolist(), None
            else:
                reader = tokenizer or Tokenizer.of(decoder.signature)
                read = reader.encode(bulk.text_of(given, "prompt"))
            yield _Text(number, read, _Printer(reader, read, "", stops, silent=True))


def _guess(draft: str | None, threads: int | None) -> str | Decoder | None:
    """What guesses tokens, as Decoder.generate takes it: a graph is opened on the CPU."""
    from t2r_runtime.decode.speculation import LOOKUP

    if draft is None or draft == LOOKUP:
        return draft
    return providers.decoder_alone(existing_graph(draft), "cpu", threads, (), allow_fallback=False)


def _numbers(ids: str, goes_on: bool) -> list[int]:
    """The prompt's tokens; of a text that goes on by itself, also none."""
    if goes_on and not ids:
        return []
    try:
        return [int(number) for number in ids.split(",")]
    except ValueError:
        raise UserError("token numbers as 1,2,3", repr(ids), "correct --ids") from None


def _encode(tokenizer: Tokenizer | None, prompt: str, decoder: Decoder, goes_on: bool) -> list[int]:
    """The prompt's tokens; of a text that goes on by itself, also none."""
    assert tokenizer is not None
    if goes_on and not prompt:
        return []
    read = tokenizer.encode(prompt)
    if decoder.position == 0 and not goes_on:
        return read
    if read[:1] == [decoder.signature.bos_token]:
        read = read[1:]  # this text began before
    if not read and not goes_on:
        raise UserError("a prompt to continue a saved state with", "an empty one", "give one with --prompt")
    return read


class _Printer:
    """Writes tokens to stdout as they come, as text, or as numbers where there is no tokenizer; before the first one,
    the prompt to stderr. Text ends before the first of `stops`, and what may begin one waits.

    `text` is what was written; None of numbers.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, read: Sequence[int], prompt: str, stops: Sequence[str], silent: bool
    ) -> None:
        self._stream = tokenizer.stream(read) if tokenizer else None
        self._prompt, self._silent = prompt, silent
        self._until = Until(stops)
        self.text = "" if tokenizer else None

    def token(self, token: int) -> bool:
        """Whether the text goes on."""
        if self._prompt and not self._silent:
            click.echo(self._prompt, err=True, nl=False)
            self._prompt = ""
        if self._stream is None:
            self._write(f"{token} ")
        else:
            self._add(self._until.feed(self._stream.feed(token)))
        return not self._until.found

    def end(self) -> None:
        if self._stream is not None:
            self._add(self._until.feed(self._stream.end()))
            self._add(self._until.end())

    def _add(self, piece: str) -> None:
        assert self.text is not None
        self.text += piece
        self._write(piece)

    def _write(self, piece: str) -> None:
        if piece and not self._silent:
            click.echo(piece, nl=False)

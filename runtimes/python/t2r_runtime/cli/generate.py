"""`t2r-run generate`: continue a text with an exported graph.

The new text goes to stdout and the prompt to stderr, so that a terminal shows both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_runtime.checks import require_int
from t2r_runtime.cli import bulk, providers, sampling
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.cli.score import MAX_TEXT
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.session.refusals import existing_graph
from t2r_runtime.session.tuning import PREFILL_FROM
from t2r_runtime.text.stops import Until
from t2r_runtime.text.texts import read_text

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Sampling, Signature, Tokenizer
    from t2r_runtime.decode.text import Text

USUAL = 200  # new tokens


@click.command("generate")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--prompt", default="", metavar="TEXT", help="Text to continue; an empty text starts from BOS.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="File with the text to continue; - is stdin.")
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help="Text that ends the output, excluded. Repeatable.")
@click.option("--ids", metavar="1,2,3", help="Prompt as token ids; the output is token ids too.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    help=f"Maximum number of new tokens; 0 only reads the prompt.  [default: {USUAL}, or as many as have positions]",
)
@click.option(
    "--draft",
    metavar="lookup|GRAPH",
    help="Speculative decoding: draft tokens by prompt lookup or with a smaller model.",
)
@sampling.options
@providers.threads_option
@providers.option
@bulk.option('a "prompt" or "ids"')
@click.option("--save-state", type=click.Path(path_type=Path), help="File to save the final state to.")
@click.option("--load-state", type=click.Path(path_type=Path), help="File of a saved state to continue from.")
@json_option
def command(
    graph: Path,
    prompt: str,
    prompt_file: Path | None,
    stops: tuple[str, ...],
    ids: str | None,
    max_tokens: int | None,
    draft: str | None,
    rules: Sampling,
    threads: int | None,
    provider: providers.Provider,
    jsonl: tuple[Path, Path] | None,
    rows: int,
    save_state: Path | None,
    load_state: Path | None,
    as_json: bool,
) -> None:
    """Continue a text with GRAPH, an exported .onnx file; the new text goes to stdout."""
    from t2r_runtime import Tokenizer

    existing_graph(graph)
    if jsonl is None:
        bulk.refuse_rows()
    elif prompt or prompt_file or ids or draft or save_state or load_state:
        raise UserError("--jsonl alone", "a prompt, a state or a draft", "leave it out; IN has the prompts")
    if load_state is not None:
        existing_file(load_state, "a saved state")
    if save_state is not None:
        from t2r_runtime.session import snapshot

        snapshot.check_place(save_state, graph)  # may be the file of --load-state
    given = None if ids is None else _numbers(ids, resumed=load_state is not None)
    if sum((bool(prompt), prompt_file is not None, ids is not None)) > 1:
        raise UserError("one of --prompt, --prompt-file and --ids", "several", "leave out the others")
    if "" in stops:
        raise UserError("a text for --stop", "an empty one", "leave it out")
    if stops and ids is not None:
        raise UserError("a prompt that is text with --stop", "--ids", "leave one of them out")
    if prompt_file is not None:
        prompt = read_text(prompt_file, most=MAX_TEXT)
    decoder = providers.decoder_alone(graph, provider, threads, prefill_from=PREFILL_FROM)
    rules = sampling.of_graph(rules, decoder.signature)
    if jsonl is not None:
        with bulk.Bulk(jsonl, graph) as lines:
            _answer(lines, decoder, max_tokens, rules, stops, rows)
        return providers.note_split(provider.name, decoder.placement)
    guess = providers.draft(draft, threads)
    chosen = None if load_state is None else decoder.load_state(load_state)
    tokenizer = Tokenizer.of(decoder.signature) if given is None else None
    new = given if tokenizer is None else _encode(tokenizer, prompt, decoder, resumed=chosen is not None)
    read = [*([] if chosen is None else [chosen]), *(new or [])]
    printer = _Printer(tokenizer, read, prompt, stops, silent=as_json)
    most = _most(max_tokens, decoder.signature, decoder.position + len(read))
    started = time.perf_counter()
    written: list[int] = []
    if most:
        written = decoder.generate(read, most, rules, printer.token, guess)
    elif save_state is None:
        decoder.prefill(read)
    elif read[1:]:
        decoder.prefill(read[:-1])
    seconds = time.perf_counter() - started
    printer.end()
    if save_state is not None:
        decoder.save_state(save_state, [*read, *written][-1])  # not read yet
    if as_json:
        result = {"prompt": read, "tokens": written, "text": printer.text, "seconds": seconds}
        show(True, {**result, "position": decoder.position, "placement": decoder.placement}, "")
    else:
        rate = (len(read) + len(written)) / seconds
        note(f"\n{len(read)} tokens read, {len(written)} written in {seconds:.2f} s, {rate:.0f} tokens/s")
    providers.note_split(provider.name, decoder.placement)


def _most(tokens: int | None, signature: Signature, read: int) -> int:
    """`--max-tokens`; by default `USUAL`, or fewer if fewer positions are left after `read` tokens."""
    if tokens is not None:
        return tokens
    left = USUAL if signature.reach is None else signature.reach - read + 1  # the last one is not read
    return max(1, min(USUAL, left))


@dataclass
class _Line:
    """A line of --jsonl being continued."""

    number: int
    read: list[int]
    printer: _Printer
    written: list[int] = field(default_factory=list)

    def token(self, token: int) -> bool:
        """Add a token; returns whether the text continues."""
        self.written.append(token)
        return self.printer.token(token)

    def answer(self) -> bulk.Given:
        self.printer.end()
        return {"tokens": self.written, "text": self.printer.text}


def _answer(
    lines: bulk.Bulk, decoder: Decoder, max_tokens: int | None, rules: Sampling, stops: Sequence[str], rows: int
) -> None:
    """Continue every line, `rows` of them side by side."""
    from t2r_runtime.decode.pool import Pool

    texts = _texts(lines, decoder, stops)
    if rows == 1:  # works with any graph
        for line in texts:
            decoder.reset()
            with lines.answering(line.number):
                most = _most(max_tokens, decoder.signature, len(line.read))
                decoder.generate(line.read, most, rules, line.token)
                lines.put(line.number, line.answer())
        return
    pool = Pool(decoder, rows)

    def add(line: _Line) -> Text:
        most = _most(max_tokens, decoder.signature, len(line.read))
        require_int(most, "max_tokens", 1, "sampling")
        return pool.add(line.read, most, [rules])[0]

    bulk.side_by_side(lines, texts, pool, rows, add)


def _texts(lines: bulk.Bulk, decoder: Decoder, stops: Sequence[str]) -> Iterator[_Line]:
    from t2r_runtime import Tokenizer
    from t2r_runtime.session.stepper import token_ids

    tokenizer = None if decoder.signature.tokenizer is None else Tokenizer.of(decoder.signature)
    for number, given in lines:
        with lines.answering(number):
            if "ids" in given and "prompt" in given:
                raise UserError('one of "prompt" and "ids"', "both", "leave one of them out")
            if "ids" in given:
                read, reader = token_ids(given["ids"], decoder.signature, 1).array[0].tolist(), None
            else:
                reader = tokenizer or Tokenizer.of(decoder.signature)
                read = reader.encode(bulk.text_of(given, "prompt"))
            yield _Line(number, read, _Printer(reader, read, "", stops, silent=True))


def _numbers(ids: str, resumed: bool) -> list[int]:
    """Parse --ids; may be empty after --load-state."""
    if resumed and not ids:
        return []
    try:
        return [int(number) for number in ids.split(",")]
    except ValueError:
        raise UserError("token ids as 1,2,3", repr(ids), "correct --ids") from None


def _encode(tokenizer: Tokenizer, prompt: str, decoder: Decoder, resumed: bool) -> list[int]:
    """The prompt's tokens; may be empty if the loaded state includes a chosen token."""
    if resumed and not prompt:
        return []
    read = tokenizer.encode(prompt)
    if decoder.position == 0 and not resumed:
        return read
    if read[:1] == [decoder.signature.bos_token]:
        read = read[1:]  # already read
    if not read and not resumed:
        raise UserError("a prompt to continue a saved state with", "an empty one", "pass one with --prompt")
    return read


class _Printer:
    """Streams tokens to stdout as text, or as ids without a tokenizer, after printing the prompt to stderr.

    The text ends before the first of `stops`; a possible beginning of one is held back.

    Attributes:
        text: the text so far; None without a tokenizer.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, read: Sequence[int], prompt: str, stops: Sequence[str], silent: bool
    ) -> None:
        self._stream = tokenizer.stream(read) if tokenizer else None
        self._prompt, self._silent = prompt, silent
        self._until = Until(stops)
        self.text = "" if tokenizer else None

    def token(self, token: int) -> bool:
        """Add a token; returns whether the text continues."""
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

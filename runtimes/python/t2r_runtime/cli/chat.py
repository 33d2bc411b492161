"""`t2r chat`: talk with an exported graph of a chat model, a line on stdin a turn.

stdout holds the answers and nothing else. The state stays between turns: of what the template makes of all messages, no
more is read than what is new, wherever that begins with the very tokens that were read before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_runtime.cli import providers, sampling
from t2r_runtime.errors import UserError
from t2r_runtime.text.texts import STDIN, decode_lines

MAX_WRITTEN = 1 << 14  # tokens that a template may write around a message, where positions do not end

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Sampling, Tokenizer


@click.command("chat")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="What the model is told before the first turn.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Largest number of tokens of an answer.",
)
@sampling.options
@providers.options
def command(
    graph: Path,
    system: str | None,
    max_tokens: int,
    rules: Sampling,
    threads: int | None,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
) -> None:
    """Talk with GRAPH, an exported .onnx file of a chat model: a line a turn; Ctrl-D ends."""
    from t2r_runtime import Tokenizer

    decoder = providers.decoder_alone(graph, provider, threads, provider_options, allow_fallback)
    rules = sampling.of_graph(rules, decoder.signature)
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), rules, max_tokens)
    if system is not None:
        talk.messages.append({"role": "system", "content": system})
    for line in _lines():
        for piece in talk.answer(line):
            click.echo(piece, nl=False)
        click.echo()


@dataclass
class Conversation:
    """Messages, and a decoder that has read what the template made of them."""

    decoder: Decoder
    tokenizer: Tokenizer
    sampling: Sampling
    max_tokens: int
    messages: list[dict[str, str]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)  # by the decoder, from the start of the text

    def answer(self, said: str) -> Iterator[str]:
        """The answer to what the user said, as it comes.

        Raises:
            UserError: a model without a chat template, one that refuses the messages, or a text that is too long.
        """
        asked = [*self.messages, {"role": "user", "content": said}]
        ids = self.tokenizer.encode(self.tokenizer.chat(asked), special_tokens=False)
        new = self._unread(ids)
        self._require_room(len(ids), len(new) - len(said.encode()))
        written: list[int] = []
        stream = self.tokenizer.stream(ids)
        pieces = []
        for token in self.decoder.stream(new, self.max_tokens, self._rules()):
            written.append(token)
            pieces.append(stream.feed(token))
            yield pieces[-1]
        pieces.append(stream.end())
        yield pieces[-1]
        self.read = ids + written[:-1]
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def _require_room(self, tokens: int, written: int) -> None:
        """Refuse a text that the template makes too long: each of its tokens is a step.

        Args:
            tokens: of all messages.
            written: at least so many new ones come of the template, and not of what the user said.
        """
        signature = self.decoder.signature
        most = signature.max_positions if signature.past_end == "refuse" else None
        for number, limit, of in ((tokens, most, "the model's context"), (written, MAX_WRITTEN, "a chat template")):
            if limit is not None and number > limit:
                expected = f"at most {limit:,} tokens of {of}"
                raise UserError(expected, f"{number:,}", "say less, or export another chat template", "position")

    def _unread(self, ids: list[int]) -> list[int]:
        """What of the text is new; all of it where it does not go on from what was read, which is forgotten then."""
        read, self.read = self.read, []  # nobody knows how much was, if the answer is interrupted
        if read and ids[: len(read)] == read and len(ids) > len(read):
            return ids[len(read) :]
        self.decoder.reset()
        return ids

    def _rules(self) -> Sampling:
        """Sampling that stops at the end of a turn, too, as the template has it; each answer has a seed of its own."""
        import dataclasses

        end = self.tokenizer.end_of_turn
        stop = [*self.decoder.signature.eos_tokens, *([] if end is None else [end])]
        answers, seed = sum(message["role"] == "assistant" for message in self.messages), self.sampling.seed
        return dataclasses.replace(self.sampling, stop_tokens=stop, seed=None if seed is None else seed + answers)


def _lines() -> Iterator[str]:
    """What the user types, without empty lines; a terminal shows where. Raises UserError: it is not UTF-8."""
    lines = decode_lines(iter(sys.stdin.buffer.readline, b""), STDIN)
    while True:
        if sys.stdin.isatty():
            click.echo("> ", err=True, nl=False)
        line = next(lines, None)
        if line is None:
            return
        if line.strip():
            yield line

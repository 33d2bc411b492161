"""`t2r-run chat`: chat with an exported graph, one line of stdin per turn.

Only the answers go to stdout. The state is kept between turns: the template renders all messages, and if the rendered
tokens begin with those read before, only the new ones are read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t2r_runtime.cli import providers, sampling
from t2r_runtime.errors import UserError
from t2r_runtime.text.texts import STDIN, decode_lines

MAX_WRITTEN = 1 << 14  # tokens that a template may add to a message, for models without a context limit

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Sampling, Tokenizer


@click.command("chat")
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="System message before the first turn.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of tokens per answer.",
)
@sampling.options
@providers.threads_option
@providers.option
def command(
    graph: Path,
    system: str | None,
    max_tokens: int,
    rules: Sampling,
    threads: int | None,
    provider: providers.Provider,
) -> None:
    """Chat with GRAPH, an exported .onnx file of a chat model: one line per turn; Ctrl-D ends."""
    from t2r_runtime import Tokenizer

    decoder = providers.decoder_alone(graph, provider, threads)
    rules = sampling.of_graph(rules, decoder.signature)
    tokenizer = Tokenizer.of(decoder.signature)
    tokenizer.require_chat_template()  # before the user types a line
    talk = Conversation(decoder, tokenizer, rules, max_tokens)
    if system is not None:
        talk.messages.append({"role": "system", "content": system})
    converse(talk, lines())


def converse(talk: Conversation, lines: Iterable[str]) -> None:
    """Print the answer to each line."""
    for line in lines:
        for piece in talk.answer(line):
            click.echo(piece, nl=False)
        click.echo()


@dataclass
class Conversation:
    """Messages, and a decoder that has read them as the template renders them."""

    decoder: Decoder
    tokenizer: Tokenizer
    sampling: Sampling
    max_tokens: int
    messages: list[dict[str, str]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)  # tokens that the decoder has read

    def answer(self, message: str) -> Iterator[str]:
        """Yield the answer to a user message, piece by piece.

        Raises:
            UserError: no chat template, messages that the template rejects, or too many tokens.
        """
        messages = [*self.messages, {"role": "user", "content": message}]
        ids = self.tokenizer.encode(self.tokenizer.chat(messages), special_tokens=False)
        new = self._unread(ids)
        self._require_room(len(ids), len(new) - len(message.encode()))
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
        self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def _require_room(self, tokens: int, written: int) -> None:
        """Raise UserError if the rendered messages are too long: each token is a step.

        Args:
            tokens: number of tokens of all messages.
            written: lower bound of the new tokens that come from the template, not from the user.
        """
        most = self.decoder.signature.reach
        for number, limit, of in ((tokens, most, "the model's context"), (written, MAX_WRITTEN, "a chat template")):
            if limit is not None and number > limit:
                expected = f"at most {limit:,} tokens of {of}"
                raise UserError(expected, f"{number:,}", "shorten the message or change the template", "position")

    def _unread(self, ids: list[int]) -> list[int]:
        """The tokens to read: those after `read`, or after a reset all of them if `ids` does not continue `read`."""
        read, self.read = self.read, []  # unknown if the answer is interrupted
        if read and ids[: len(read)] == read and len(ids) > len(read):
            return ids[len(read) :]
        self.decoder.reset()
        return ids

    def _rules(self) -> Sampling:
        """The sampling options, with the template's end-of-turn token as a stop token, and a new seed per answer."""
        import dataclasses

        end = self.tokenizer.end_of_turn
        stop = [*self.decoder.signature.eos_tokens, *([] if end is None else [end])]
        answers, seed = sum(message["role"] == "assistant" for message in self.messages), self.sampling.seed
        return dataclasses.replace(self.sampling, stop_tokens=stop, seed=None if seed is None else seed + answers)


def lines() -> Iterator[str]:
    """Yield the non-empty lines of stdin; a terminal shows a prompt. Raises UserError if one is not UTF-8."""
    read = decode_lines(iter(sys.stdin.buffer.readline, b""), STDIN)
    while True:
        if sys.stdin.isatty():
            click.echo("> ", err=True, nl=False)
        line = next(read, None)
        if line is None:
            return
        if line.strip():
            yield line

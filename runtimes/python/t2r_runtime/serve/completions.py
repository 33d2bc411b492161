"""/v1/completions: continues texts or token ids."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from t2r_runtime.serve.answer import Answer
from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import Fields, is_text, shown
from t2r_runtime.serve.job import Event
from t2r_runtime.serve.models import MAX_CHOICES, Model, Served
from t2r_runtime.serve.request_options import RequestOptions, job, read_options, require_log_probs, require_size
from t2r_runtime.serve.writer import Echo, LogProb, Piece
from t2r_runtime.text.tokenizer import Tokenizer

MAX_TOKENS = 16  # default, as in OpenAI's API
MAX_TOP = 20  # most likely tokens with a log-probability
# fields of chats, and the values that disable them
OF_CHATS: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}


class Completion:
    """Choices of a completion."""

    kind = part_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, tokenizer: Tokenizer | None, tokens: bool) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice, from all its pieces."""
        made = {"index": piece.index, "text": piece.text, "finish_reason": piece.finish, "logprobs": None}
        if piece.logprobs:
            made["logprobs"] = self._logprobs(piece)
        return {**made, "tokens": piece.tokens} if self._tokens else made

    def first_parts(self, choices: int) -> list[dict[str, Any]]:
        """Parts of a stream before the first pieces."""
        return []

    def parts(self, piece: Piece) -> list[dict[str, Any]]:
        """Parts of a stream."""
        return [self.choice(piece)]

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        return {
            "tokens": [self._text(each.token) for each in piece.logprobs],
            "token_logprobs": [each.value for each in piece.logprobs],
            "top_logprobs": [self._top(each) for each in piece.logprobs],
            "text_offset": [each.place for each in piece.logprobs],
        }

    def _top(self, each: LogProb) -> dict[str, float] | None:
        if each.value is None:
            return None
        found: dict[str, float] = {}
        for token, value in each.top:
            found.setdefault(self._text(token), value)
        return found

    def _text(self, token: int) -> str:
        return str(token) if self._tokenizer is None else self._tokenizer.token_text(token)


async def complete(served: Served, model: Model, fields: Fields) -> tuple[Answer, RequestOptions]:
    """Check a request, and start its jobs. Raises ApiError."""
    model.decoder()
    for name, allowed in OF_CHATS.items():
        fields.only(name, allowed)
    prompts = _prompts(fields.take("prompt"))
    top = fields.whole("logprobs", None, 0, MAX_TOP)
    options = read_options(fields, served, model, top, model.signature.eos_tokens)
    echo = fields.flag("echo")
    fields.end()
    if len(prompts) * options.choices > MAX_CHOICES:
        received = f"{len(prompts)} times {options.choices}"
        raise wrong(f"at most {MAX_CHOICES} choices", received, "send several requests", "prompt")
    events: asyncio.Queue[Event] = asyncio.Queue()
    jobs = []
    most = MAX_TOKENS if options.max_tokens is None else options.max_tokens
    encoded = await _encoded(served, model, prompts)
    require_log_probs(options, echo * sum(map(len, encoded)), len(prompts) * options.choices * most)
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
        placed = functools.partial(_echo, model.tokenizer, prompt, options.top is not None)
        echoed = await served.encoders.run(len(prompt), placed) if echo else None
        jobs.append(await job(served, model, options, ids, most, number * options.choices, events, echoed))
    return Answer(served, model, options, Completion(model.tokenizer, options.tokens), jobs), options


async def _encoded(served: Served, model: Model, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """The tokens of each prompt. Raises ApiError if they are too many."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = await served.encoders.each(model.text().encode, texts, model.most_tokens, "prompt") if texts else []
    found = iter(encoded)
    ids = [next(found) if isinstance(prompt, str) else prompt for prompt in prompts]
    require_size(sum(map(len, ids)))
    return ids


def _echo(tokenizer: Tokenizer | None, prompt: str | list[int], placed: bool) -> Echo:
    """The text of a prompt; with the start of each token if `placed`."""
    if tokenizer is None:
        return Echo("", [0] * len(prompt))
    if isinstance(prompt, str):
        return Echo(prompt, tokenizer.places(prompt) if placed else ())
    ends, stream = [0], tokenizer.stream()
    for token in prompt if placed else ():
        ends.append(ends[-1] + len(stream.feed(token)))
    return Echo(tokenizer.decode(prompt), ends[:-1])


def _prompts(value: object) -> Sequence[str | list[int]]:
    """The prompts of the field `prompt`: a text, token ids, or a list of those."""

    if isinstance(value, list):  # before their types, which would take time too
        require_size(len(value) + sum(len(each) for each in value if isinstance(each, list)))

    def ids(each: object) -> bool:
        return isinstance(each, list) and bool(each) and all(type(token) is int for token in each)

    if value is None:
        return [""]
    if is_text(value) or ids(value):
        return [value]  # type: ignore[list-item]
    if isinstance(value, list) and value and all(is_text(each) or ids(each) for each in value):
        return value
    expected = "a text, token ids, or a list of those, as prompt"
    raise wrong(expected, shown(value), "correct it", "prompt")

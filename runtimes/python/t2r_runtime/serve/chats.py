"""/v1/chat/completions: continues messages, rendered with the graph's chat template."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from t2r_runtime.serve.answer import Answer
from t2r_runtime.serve.completions import MAX_TOP
from t2r_runtime.serve.encoders import require_characters
from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import Fields, is_text, shown
from t2r_runtime.serve.job import Event
from t2r_runtime.serve.models import Model, Served
from t2r_runtime.serve.request_options import RequestOptions, job, read_options, require_log_probs, require_size
from t2r_runtime.serve.writer import Piece
from t2r_runtime.text.tokenizer import Tokenizer

MAX_TOKENS = 512  # default; fewer if the model has fewer positions left
MAX_MESSAGES = 4096


class Chat:
    """Choices of a chat."""

    kind, part_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, tokens: bool) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice, from all its pieces."""
        return self._made(piece, "message", {"role": "assistant", "content": piece.text, "refusal": None})

    def first_parts(self, choices: int) -> list[dict[str, Any]]:
        """Parts of a stream before the first pieces: the role of each choice."""
        begun = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": begun, "finish_reason": None} for index in range(choices)]

    def part(self, piece: Piece) -> dict[str, Any]:
        """A part of a stream."""
        return self._made(piece, "delta", {"content": piece.text} if piece.text else {})

    def _made(self, piece: Piece, name: str, value: dict[str, Any]) -> dict[str, Any]:
        made = {"index": piece.index, name: value, "finish_reason": piece.finish, "logprobs": None}
        if piece.logprobs:
            content = [
                {**self._entry(each.token, each.value or 0.0), "top_logprobs": [self._entry(*one) for one in each.top]}
                for each in piece.logprobs
            ]
            made["logprobs"] = {"content": content, "refusal": None}
        return {**made, "tokens": piece.tokens} if self._tokens else made

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        text, bytes_ = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
        return {"token": text, "logprob": value, "bytes": list(bytes_)}


async def chat(served: Served, model: Model, fields: Fields) -> tuple[Answer, RequestOptions]:
    """Check a request, and start its job. Raises ApiError."""
    model.decoder()
    tokenizer = model.text()
    messages = _messages(fields.take("messages"))
    top = fields.whole("top_logprobs", None, 0, MAX_TOP)
    top = (top or 0) if fields.flag("logprobs") else None
    options = read_options(fields, served, model, top, model.ends)
    fields.end()
    contents = [message["content"] for message in messages]
    require_characters(contents, None, "messages")
    encoders, encode = served.encoders, functools.partial(tokenizer.encode, special_tokens=False)
    text = await encoders.run(sum(map(len, contents)), lambda: tokenizer.chat(messages))
    [ids] = await encoders.each(encode, [text], model.most_tokens, "messages")
    require_size(len(ids), "messages")
    events: asyncio.Queue[Event] = asyncio.Queue()
    most = options.max_tokens
    if most is None:
        reach = model.signature.reach
        room = MAX_TOKENS if reach is None else max(reach - len(ids) + 1, 1)
        most = min(MAX_TOKENS, served.limits.max_tokens, room)
    require_log_probs(options, 0, options.choices * most)
    jobs = [await job(served, model, options, ids, most, 0, events)]
    return Answer(served, model, options, Chat(tokenizer, options.tokens), jobs), options


def _messages(value: object) -> list[dict[str, str]]:
    """The messages, each with a role and a text."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise wrong(f"a list of 1 to {MAX_MESSAGES} messages", shown(value), "correct it", "messages")
    return [_message(each, number) for number, each in enumerate(value)]


def _message(value: object, number: int) -> dict[str, str]:
    param = f"messages[{number}]"
    if not isinstance(value, dict) or not is_text(value.get("role"), 64):
        raise wrong(f"an object with a role and a content as {param}", shown(value), "correct it", param)
    content = value.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(map(is_text, texts)) else None
    if not is_text(content):
        raise wrong(f"a text as the content of {param}", shown(value.get("content")), "correct it", param)
    extra = value.keys() - {"role", "content", "name", "refusal"}
    if extra:
        raise wrong(f"role and content in {param}", shown(min(map(str, extra))), "leave it out", param)
    return {"role": value["role"], "content": str(content)}

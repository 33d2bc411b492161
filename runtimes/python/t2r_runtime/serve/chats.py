"""/v1/chat/completions: continues messages, rendered with the graph's chat template."""

from __future__ import annotations

import asyncio
import functools
import random
import string
from collections import defaultdict
from dataclasses import replace
from typing import Any

from t2r_runtime.serve.answer import Answer
from t2r_runtime.serve.completions import MAX_TOP
from t2r_runtime.serve.encoders import require_characters
from t2r_runtime.serve.fields import Fields
from t2r_runtime.serve.job import Event
from t2r_runtime.serve.models import Model, Served
from t2r_runtime.serve.request_options import RequestOptions, job, read_options, require_log_probs, require_size
from t2r_runtime.serve.tools.base import Call
from t2r_runtime.serve.tools.messages import characters, read_messages
from t2r_runtime.serve.tools.request import Tools, read_tools
from t2r_runtime.serve.tools.stream import CallStream
from t2r_runtime.serve.writer import Piece
from t2r_runtime.text.tokenizer import Tokenizer

MAX_TOKENS = 512  # default; fewer if the model has fewer positions left
ID_LETTERS, ID_SIZE = string.ascii_letters + string.digits, 9  # Mistral's templates refuse other ids


class Chat:
    """Choices of a chat.

    Args:
        tokens: also write token ids.
        tools: functions whose calls the choices may contain.
    """

    kind, part_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, tokens: bool, tools: Tools | None = None) -> None:
        self._tokenizer, self._tokens, self._tools = tokenizer, tokens, tools
        self._streams: dict[int, CallStream] = {} if tools is None else defaultdict(tools.stream)  # of each choice

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice, from all its pieces."""
        text, calls = self._read(piece)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            written = [{"id": _new_id(), "type": "function", "function": call._asdict()} for call in calls]
            message |= {"content": text or None, "tool_calls": written}
        return self._made(piece, "message", message)

    def first_parts(self, choices: int) -> list[dict[str, Any]]:
        """Parts of a stream before the first pieces: the role of each choice."""
        begun = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": begun, "finish_reason": None} for index in range(choices)]

    def parts(self, piece: Piece) -> list[dict[str, Any]]:
        """Parts of a stream: text, then for each call its name, and its arguments."""
        text, calls = self._read(piece)
        deltas: list[dict[str, Any]] = [{"content": text}] if text else []
        first = 0 if self._tools is None else self._streams[piece.index].calls - len(calls)
        for index, call in enumerate(calls, first):
            named = {"index": index, "id": _new_id(), "type": "function"}
            deltas.append({"tool_calls": [{**named, "function": {"name": call.name, "arguments": ""}}]})
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})
        if not deltas and (piece.finish or piece.logprobs or self._tokens):
            deltas.append({})
        parts = [self._made(Piece(piece.index), "delta", delta) for delta in deltas]
        if parts:
            parts[0] |= self._made(piece, "delta", deltas[0]) | {"finish_reason": None}
            parts[-1]["finish_reason"] = piece.finish
        return parts

    def _read(self, piece: Piece) -> tuple[str, list[Call]]:
        """The text and the calls of a piece; a last piece with calls ends for their sake."""
        if self._tools is None:
            return piece.text, []
        stream = self._streams[piece.index]
        text, calls = stream.feed(piece.text)
        if piece.finish is not None:
            rest, more = stream.end()
            text, calls = text + rest, calls + more
            piece.finish = "tool_calls" if stream.calls and piece.finish == "stop" else piece.finish
        return text, calls

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
    messages = read_messages(fields.take("messages"))
    tools = read_tools(fields, model.tool_format)
    top = fields.whole("top_logprobs", None, 0, MAX_TOP)
    top = (top or 0) if fields.flag("logprobs") else None
    options = read_options(fields, served, model, top, model.ends)
    fields.end()
    encoders, encode = served.encoders, functools.partial(tokenizer.encode, special_tokens=False)
    texts, rendered = characters(messages), None
    if tools is not None:
        texts, rendered = [*texts, tools.text], tools.rendered
        written = tools.written(tokenizer)
        form = await encoders.run(len(tools.text), functools.partial(tools.form, written, options.form))
        options = replace(options, written=written, form=form)
    require_characters(texts, None, "messages")
    text = await encoders.run(sum(map(len, texts)), lambda: tokenizer.chat(messages, tools=rendered))
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
    return Answer(served, model, options, Chat(tokenizer, options.tokens, tools), jobs), options


def _new_id() -> str:
    """The id of a call."""
    return "".join(random.choices(ID_LETTERS, k=ID_SIZE))

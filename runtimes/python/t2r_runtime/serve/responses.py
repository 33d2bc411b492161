"""/v1/responses: OpenAI's Responses API over chats. Nothing is stored, so a request has the whole conversation."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from t2r_runtime.serve import chats
from t2r_runtime.serve.answer import Answer, event
from t2r_runtime.serve.errors import ApiError, wrong
from t2r_runtime.serve.fields import Fields, shown
from t2r_runtime.serve.models import Model, Served
from t2r_runtime.serve.request_options import RequestOptions

# fields of chats that have another name here
NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}
TEXTS = {"input_text", "output_text", "text"}  # types of the parts of a content
# features that this server has not → values that disable them
MISSING: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({},),
    "max_tool_calls": (),
    "top_logprobs": (0,),
    "n": (1,),
    "stream_options": ({}, {"include_obfuscation": False}),
}
ECHOED = ("instructions", "max_output_tokens", "temperature", "top_p", "metadata", "user")
DEFAULTS = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "text": {"format": {"type": "text"}}}


async def respond(served: Served, model: Model, fields: Fields) -> tuple[Response, RequestOptions]:
    """Check a request, and start its job. Raises ApiError."""
    for name, allowed in MISSING.items():
        fields.only(name, allowed)
    given = fields.rest()
    for name in given.keys() & NAMES.keys():
        raise ApiError(
            400, f"expected {NAMES[name]}; received {name}, a field of chats; rename it", name, "unknown_field"
        )
    echoed = {name: given.get(name) for name in ECHOED}
    echoed |= {name: given.get(name, default) for name, default in DEFAULTS.items()}
    try:
        answer, options = await chats.chat(served, model, Fields(_as_chat(given)))
    except ApiError as error:
        raise _renamed(error) from error
    return Response(answer, model.name, echoed), options


class Response:
    """A chat's answer as a response: whole, or as a stream of events."""

    def __init__(self, answer: Answer, model: str, echoed: Mapping[str, Any]) -> None:
        self._answer, self.close = answer, answer.close
        self._head = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "store": False,
            "previous_response_id": None,
            "truncation": "disabled",
            **echoed,
        }
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []  # of a stream
        self._in_text = False  # whether its last item is a message that goes on

    @property
    def status(self) -> int:
        """HTTP status of an error that ended the stream."""
        return self._answer.status

    @status.setter
    def status(self, value: int) -> None:
        self._answer.status = value

    @property
    def summary(self) -> dict[str, str | int]:
        """Its line in the log, besides the request's."""
        return {**self._answer.summary, "id": self._head["id"]}

    async def whole(self) -> dict[str, Any]:
        """The response as one object."""
        made = await self._answer.whole()
        [choice] = made["choices"]
        message = choice["message"]
        calls = [_call(call["id"], **call["function"]) for call in message.get("tool_calls", ())]
        texts = [_message(message["content"] or "")] if message["content"] or not calls else []
        return self._made(_status(choice["finish_reason"]), [*texts, *calls], made["usage"])

    async def events(self) -> AsyncIterator[str]:
        """The response as events; the last one has it whole, or its error."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._made("in_progress", []))
        usage = finish = None
        try:
            async for part in self._answer.parts():
                usage = part.get("usage") or usage
                for choice in part["choices"]:
                    finish = choice["finish_reason"] or finish
                    for each in self._written(choice["delta"]):
                        yield each
            for each in (*([] if self._output else self._opened()), *self._closed()):
                yield each
            status = _status(finish)
            yield self._event(f"response.{status}", response=self._made(status, self._output, usage))
        except ApiError as error:
            failed = {"code": error.code or "server_error", "message": error.message}
            yield self._event("response.failed", response=self._made("failed", self._output, None, failed))

    def _written(self, delta: Mapping[str, Any]) -> Iterator[str]:
        """The events of a part of a chat: text, or a call, whose arguments follow its name."""
        if text := delta.get("content"):
            if not self._in_text:
                yield from self._opened()
            item = self._output[-1]
            item["content"][0]["text"] += text
            yield self._event("response.output_text.delta", **self._place(), content_index=0, delta=text)
        for found in delta.get("tool_calls", ()):
            yield from self._closed()
            if "id" in found:
                self._output.append(_call(found["id"], found["function"]["name"], ""))
                index, call = len(self._output) - 1, {**self._output[-1], "status": "in_progress"}
                yield self._event("response.output_item.added", output_index=index, item=call)
            else:
                self._output[-1]["arguments"] = found["function"]["arguments"]
                yield from self._called()

    def _opened(self) -> Iterator[str]:
        """Begin a message."""
        self._output.append(_message(""))
        self._in_text = True
        begun = {**self._output[-1], "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=begun)
        part = {"type": "output_text", "text": "", "annotations": []}
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _closed(self) -> Iterator[str]:
        """End the message, if one is open."""
        if not self._in_text:
            return
        self._in_text = False
        item = self._output[-1]
        [part] = item["content"]
        yield self._event("response.output_text.done", **self._place(), content_index=0, text=part["text"])
        yield self._event("response.content_part.done", **self._place(), content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _called(self) -> Iterator[str]:
        """The arguments of the last call, and its end."""
        item, name = self._output[-1], "response.function_call_arguments"
        yield self._event(f"{name}.delta", **self._place(), delta=item["arguments"])
        yield self._event(f"{name}.done", **self._place(), name=item["name"], arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _event(self, kind: str, **values: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **values}, kind)

    def _made(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: Mapping[str, Any] | None = None,
        error: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        counts = usage and {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        state = {"status": status, "error": error, "incomplete_details": why, "output": output, "usage": counts}
        return {**self._head, **state}


def _as_chat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The request as one of chats."""
    mine = {"input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "stream"}
    first = [] if given.get("instructions") is None else [{"role": "system", "content": given["instructions"]}]
    made = {name: value for name, value in given.items() if name not in mine}
    made |= {"messages": [*first, *_messages(given.get("input"))], "max_tokens": given.get("max_output_tokens")}
    made |= {"stream": given.get("stream"), "tools": given.get("tools"), "tool_choice": given.get("tool_choice")}
    if made["stream"] is True:
        made["stream_options"] = {"include_usage": True}
    if isinstance(made["tools"], list):
        made["tools"] = [_nested(tool, "function") for tool in made["tools"]]
    if isinstance(made["tool_choice"], dict):
        made["tool_choice"] = _nested(made["tool_choice"], "function")
    text = Fields({"text": given.get("text")}).inner("text")
    form = text.take("format")
    text.only("verbosity", ("medium",))
    text.end()
    return made | {"response_format": _nested(form, "json_schema")}


def _nested(value: Any, kind: str) -> Any:
    """An object of type `kind` with its fields in an object of that name, as chats have it."""
    if not isinstance(value, dict) or value.get("type") != kind or kind in value:
        return value
    return {"type": kind, kind: {name: each for name, each in value.items() if name != "type"}}


def _messages(value: object) -> list[Any]:
    """The items of an input as messages. Raises ApiError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise wrong("a text or a list of items", shown(value), "correct it", "input")
    messages: list[Any] = []
    for number, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not (messages and isinstance(messages[-1], dict) and "tool_calls" in messages[-1]):
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            messages[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": _content(item.get("content"))})
        else:
            expected = "a message, a function_call or a function_call_output"
            raise wrong(f"{expected} as input[{number}]", shown(item), "leave it out", f"input[{number}]")
    return messages


def _content(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    texts = [isinstance(part, dict) and part.get("type") in TEXTS for part in value]
    return [
        {"type": "text", "text": part.get("text")} if text else part for part, text in zip(value, texts, strict=True)
    ]


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": _new_id("msg"), "status": "completed", "role": "assistant", "content": content}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    made = {"type": "function_call", "id": _new_id("fc"), "call_id": id, "status": "completed"}
    return {**made, "name": name, "arguments": arguments}


def _status(finish: str | None) -> str:
    return "incomplete" if finish == "length" else "completed"


def _renamed(error: ApiError) -> ApiError:
    """An error of a chat with the names of the fields of this endpoint."""

    def ours(found: re.Match[str]) -> str:
        return found[1] + NAMES[found[2]]

    error.message = re.sub(rf"\b((?:as|of|in) )({'|'.join(map(re.escape, NAMES))})\b(?:\[\d+\])?", ours, error.message)
    error.param = error.param and re.sub(rf"^()({'|'.join(map(re.escape, NAMES))})\b(?:\[\d+\])?", ours, error.param)
    return error


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"

"""Messages of chat requests: texts, calls of functions, and what the functions returned."""

from __future__ import annotations

import json
from typing import Any

from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import is_text, shown
from t2r_runtime.serve.tools.base import MAX_DEPTH, is_deep

MAX_MESSAGES = 4096
MAX_CALLS = 128  # of a message
ID_SIZE = 256  # characters
KEYS = {"role", "content", "name", "refusal"}  # the last two have no effect
MORE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}


def read_messages(value: object) -> list[dict[str, Any]]:
    """The messages as chat templates expect them. Raises ApiError.

    Arguments of calls are objects, and what a function returned has its name, which some templates write.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise wrong(f"a list of 1 to {MAX_MESSAGES} messages", shown(value), "correct it", "messages")
    messages = [_message(each, f"messages[{number}]") for number, each in enumerate(value)]
    names: dict[str, str] = {}  # of called functions, by the id of the call
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if "id" in call}
        if "name" not in message and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]
    return messages


def characters(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of messages, for limits of their size."""
    calls = [json.dumps(message["tool_calls"]) for message in messages if "tool_calls" in message]
    return [message["content"] for message in messages] + calls


def _message(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not is_text(value.get("role"), 64):
        raise wrong(f"an object with a role and a content as {param}", shown(value), "correct it", param)
    role, content, calls = value["role"], value.get("content"), value.get("tool_calls")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(map(is_text, texts)) else None
    if content is None and role == "assistant" and calls:
        content = ""
    if not is_text(content):
        raise wrong(f"a text as the content of {param}", shown(value.get("content")), "correct it", param)
    extra = {key for key, each in value.items() if each not in (None, [])} - KEYS - MORE.get(role, set())
    if extra:
        raise wrong(f"role and content in {param}", shown(min(map(str, extra))), "leave it out", param)
    found = {"role": role, "content": str(content)}
    if role == "tool" and value.get("tool_call_id") is not None:
        found["tool_call_id"] = _text(value["tool_call_id"], f"{param}.tool_call_id")
        found |= {"name": value["name"]} if is_text(value.get("name"), ID_SIZE) else {}
    return {**found, "tool_calls": _calls(calls, f"{param}.tool_calls")} if calls else found


def _calls(value: object, param: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MAX_CALLS:
        raise wrong(f"a list of at most {MAX_CALLS} calls as {param}", shown(value), "correct it", param)
    return [_call(each, f"{param}[{number}]") for number, each in enumerate(value)]


def _call(value: object, param: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        raise wrong(f"an object with a function as {param}", shown(value), "correct it", param)
    arguments = function.get("arguments")
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or is_deep(found):
        where = f"{param}.function.arguments"
        expected = f"the JSON text of an object of at most {MAX_DEPTH} levels as {where}"
        raise wrong(expected, shown(arguments), "correct it", where)
    name = _text(function.get("name"), f"{param}.function.name")
    called = {"type": "function", "function": {"name": name, "arguments": found}}
    return called if value.get("id") is None else {"id": _text(value["id"], f"{param}.id"), **called}


def _text(value: object, param: str) -> str:
    if not is_text(value, ID_SIZE):
        raise wrong(f"a text of 1 to {ID_SIZE} characters as {param}", shown(value), "correct it", param)
    return str(value)

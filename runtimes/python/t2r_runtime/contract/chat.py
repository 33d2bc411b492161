"""Renders chat messages with the template stored in the graph.

A template is an untrusted jinja2 program: a subprocess (t2r_runtime.contract.chat_worker) renders it within limits of
size, output, memory and time, which takes about 0.1 s.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2r_runtime.checks import listed, require_kind
from t2r_runtime.errors import UserError, printable, shown

MAX_TEMPLATE = 1 << 16  # characters
MAX_TOKEN = 256  # characters of a special token
MAX_OUTPUT = 1 << 16  # characters, plus four times those of the messages
SECONDS = 10  # wall-clock time, including the start of Python
WORKER = Path(__file__).with_name("chat_worker.py")
# special tokens available to templates, named as in transformers
TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FORM = f"a chat template: a text of at most {MAX_TEMPLATE} characters, and the texts of {', '.join(TOKENS)}"


def is_chat_template(value: object) -> bool:
    """Whether `value` is `{"template": str, "tokens": {name: str}}` with names of `TOKENS`, within the size limits."""
    if not isinstance(value, Mapping) or value.keys() != {"template", "tokens"}:
        return False
    template, tokens = value["template"], value["tokens"]
    return (
        isinstance(template, str)
        and len(template) <= MAX_TEMPLATE
        and isinstance(tokens, Mapping)
        and all(name in TOKENS and isinstance(text, str) and len(text) <= MAX_TOKEN for name, text in tokens.items())
    )


def require_chat_template(value: object) -> None:
    """Raise UserError unless `is_chat_template`."""
    if not is_chat_template(value):
        raise UserError(FORM, shown(value), "export the model again", "tokenizer")


def render(
    chat_template: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Render messages to text.

    Args:
        chat_template: see `is_chat_template`.
        messages: dicts with a `role`, a `content` and any other keys of the template; plain JSON data.
        add_generation_prompt: append the prefix of the model's answer.
        tools: functions that the model may call, as in OpenAI's API; plain JSON data.

    Raises:
        UserError: malformed messages, a template that is invalid, rejects them or exceeds a limit, or jinja2 is not
            installed.
    """
    require_chat_template(chat_template)
    messages = listed(messages, "a list of messages", "tokenizer")
    for message in messages:
        require_kind(message, Mapping, "messages with a role and a content", "tokenizer")
        require_kind(message.get("role"), str, "a text as the role of a message", "tokenizer")
    _require_jinja2()
    try:
        size = len(json.dumps(messages)) + len(json.dumps(tools))
        names = {**chat_template["tokens"], "messages": messages, "add_generation_prompt": bool(add_generation_prompt)}
        names |= {"tools": tools, "documents": None}
        request = json.dumps({"template": chat_template["template"], "names": names, "limit": MAX_OUTPUT + 4 * size})
    except (TypeError, ValueError, RecursionError) as error:
        do = "pass strings, numbers, lists and dicts"
        raise UserError("messages of plain JSON data", printable(error), do, "tokenizer") from error
    answer = _answer(request)
    if "text" not in answer:
        expected = "a chat template that accepts these messages"
        raise UserError(expected, printable(answer["error"]), "change the messages", "tokenizer")
    return str(answer["text"])


def fault(template: str) -> str | None:
    """Why jinja2 cannot compile the template; None if it can.

    Raises:
        UserError: jinja2 is not installed.
    """
    _require_jinja2()
    error = _answer(json.dumps({"template": template, "limit": 0})).get("error")
    return None if error is None else printable(error)


def _require_jinja2() -> None:
    if importlib.util.find_spec("jinja2") is None:
        raise UserError("the package jinja2", "a Python without it", "pip install jinja2", "tokenizer")


def _answer(request: str) -> dict[str, str]:
    """The answer of the worker process, or why it was killed."""
    import subprocess

    command = [sys.executable, "-P", str(WORKER)]
    try:
        done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"rendering took longer than {SECONDS} s"}
    except OSError as error:
        expected = "a Python interpreter for the chat template"
        raise UserError(expected, printable(error), "check sys.executable", "tokenizer") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return {"error": f"rendering exceeded its time or memory limit (exit code {done.returncode})"}
    assert isinstance(answer, dict)
    return answer

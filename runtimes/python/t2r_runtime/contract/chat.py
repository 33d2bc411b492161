"""Messages to the text that a chat model continues, by the template that travels inside the graph.

A template is a program in jinja2's language that came with a checkpoint, so it is rendered in a process of its own
(t2r_runtime.contract.chat_worker), which takes about a tenth of a second: bounded in size, output, memory and time.
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
MAX_TOKEN = 256  # characters of a special token's text
MAX_OUTPUT = 1 << 16  # characters, beside four times those of the messages
SECONDS = 10  # of the clock, Python's start included
WORKER = Path(__file__).with_name("chat_worker.py")
# special tokens that templates may name, as transformers gives them
TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FORM = f"a chat template: a text of at most {MAX_TEMPLATE} characters, and the texts of {', '.join(TOKENS)}"


def is_chat_template(value: object) -> bool:
    """Whether this is `{"template": text, "tokens": {name: text}}` within the bounds, names of `TOKENS`."""
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
    """Refuse what `is_chat_template` does not take."""
    if not is_chat_template(value):
        raise UserError(FORM, shown(value), "export the model again", "tokenizer")


def render(chat_template: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    """What the template makes of the messages.

    Args:
        chat_template: see `is_chat_template`.
        messages: of each its `role` and `content`, and whatever else the template knows; plain JSON data.
        add_generation_prompt: end where the model's answer begins.

    Raises:
        UserError: other messages, a template that refuses them, is no template or asks for too much, or the package
            jinja2 is not installed.
    """
    require_chat_template(chat_template)
    messages = listed(messages, "a list of messages", "tokenizer")
    for message in messages:
        require_kind(message, Mapping, "messages with a role and a content", "tokenizer")
        require_kind(message.get("role"), str, "a text as the role of a message", "tokenizer")
    if importlib.util.find_spec("jinja2") is None:
        raise UserError("the package jinja2", "a Python without it", 'pip install "t2r-runtime[chat]"', "tokenizer")
    try:
        size = len(json.dumps(messages))
        names = {**chat_template["tokens"], "messages": messages, "add_generation_prompt": bool(add_generation_prompt)}
        names |= {"tools": None, "documents": None}
        request = json.dumps({"template": chat_template["template"], "names": names, "limit": MAX_OUTPUT + 4 * size})
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "messages of plain JSON data",
            printable(error),
            "give texts, numbers, lists and dicts",
            "tokenizer",
        ) from error
    answer = _answer(request)
    if "text" not in answer:
        raise UserError(
            "a chat template that takes these messages", printable(answer["error"]), "change the messages", "tokenizer"
        )
    return str(answer["text"])


def _answer(request: str) -> dict[str, str]:
    """What the worker says; of one that was ended, why."""
    import subprocess

    command = [sys.executable, "-P", str(WORKER)]
    try:
        done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"it takes longer than {SECONDS} s"}
    except OSError as error:
        expected = "to be able to start Python for a chat template"
        raise UserError(expected, printable(error), "check sys.executable", "tokenizer") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return {"error": f"it takes more time or memory than it may, and was ended (exit code {done.returncode})"}
    assert isinstance(answer, dict)
    return answer

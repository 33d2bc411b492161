"""Fields of chat requests about tools: functions, whether to call one, and how many."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import Fields, shown
from t2r_runtime.serve.grammars import CALLS, MAX_FORM, Form, is_installed
from t2r_runtime.serve.tools.base import MAX_DEPTH, Format, Functions, is_deep
from t2r_runtime.serve.tools.grammar import free_grammar, grammar
from t2r_runtime.serve.tools.stream import CallStream
from t2r_runtime.text.tokenizer import Tokenizer

MAX_TOOLS = 128  # as in OpenAI's API
MAX_SIZE = 1 << 18  # characters of all tools as JSON
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NONE, AUTO, REQUIRED = "none", "auto", "required"


@dataclass(frozen=True)
class Tools:
    """The tools of a request.

    Args:
        rendered: for the chat template.
        functions: JSON schemas of the arguments.
        parallel: whether an answer may have several calls.
        strict: whether arguments have to have the schemas of their functions.
        required: functions one of which the answer has to call; empty if it does not have to.
        text: the tools as JSON.
    """

    format: Format
    rendered: Sequence[Mapping[str, Any]]
    functions: Functions
    required: tuple[str, ...]
    parallel: bool
    strict: bool
    text: str

    def written(self, tokenizer: Tokenizer) -> dict[int, str]:
        """The special tokens of the format, which are a part of the text."""
        special = {token: tokenizer.piece(token) for token in tokenizer.special_tokens}
        return {token: text for token, text in special.items() if text in self.format.special}

    def form(self, special: Mapping[int, str], other: Form | None = None) -> Form | None:
        """The form of the answer if it has to call a function, or if its calls are strict; else the other.

        Calls are not strict without llguidance, in a format without a grammar, and in an answer of another form.

        Args:
            special: special tokens of the format.
            other: form of the answer, from another field.

        Raises:
            ApiError: a required call in an answer of another form, or in a format without a grammar; functions with
                unsupported schemas, or too large ones.
        """
        shape = self.format.shape
        if not self.required and (other is not None or shape is None or not self.strict or not is_installed()):
            return other
        if other is not None:
            raise wrong("one form of the answer", f"{other.param} and tool_choice", "leave one out", "tool_choice")
        if shape is None:
            received = f"the format {self.format.name}, which has no grammar"
            raise wrong("a model with another format of calls", received, "use tool_choice auto", "tool_choice")
        tokens = {text: token for token, text in special.items()}
        _require_size(sum(len(json.dumps(self.functions[name])) for name in self.required or self.functions))
        try:
            if self.required:
                text = grammar(shape, self.functions, self.required, self.parallel, tokens)
            else:
                text = free_grammar(self.format, shape, self.functions, tokens)
        except ValueError as error:
            received, do = str(error), "change the schema, or use tool_choice auto"
            raise wrong(f"schemas that a grammar of {self.format.name} supports", received, do, "tools") from error
        _require_size(len(text))
        return Form(CALLS, text, "tool_choice" if self.required else "tools")

    def stream(self) -> CallStream:
        """A reader of one answer."""
        return CallStream(self.format, self.functions, None if self.parallel else 1)


def read_tools(fields: Fields, format: Format | None) -> Tools | None:
    """Take the fields; None if the model is not to call functions.

    Args:
        format: that of the model's calls, if it is known.

    Raises:
        ApiError: an invalid field, too many or too large tools, or a model whose format is not known.
    """
    value, choice, parallel = fields.take("tools"), fields.take("tool_choice"), fields.flag("parallel_tool_calls", True)
    if value is None or value == []:
        if choice not in (None, NONE, AUTO):
            raise wrong("tools for this tool_choice", "none", "pass tools", "tool_choice")
        return None
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        received = f"{len(value)}" if isinstance(value, list) else shown(value)
        raise wrong(f"a list of at most {MAX_TOOLS} tools", received, "pass fewer, or correct it", "tools")
    text = _text(value)
    tools = [_tool(each, f"tools[{number}]") for number, each in enumerate(value)]
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if len(functions) < len(tools):
        raise wrong("tools of different names", "two of one name", "rename one", "tools")
    strict = any(each["function"].get("strict") for each in value)
    required = _required(choice, functions)
    if choice == NONE:
        return None
    if format is None:
        do = "use a model whose template has one of the formats, or start the server with --tool-format"
        raise wrong("a model with a known format of tool calls", "one without", do, "tools")
    return Tools(format, tools, functions, required, parallel and not isinstance(choice, dict), strict, text)


def _require_size(characters: int) -> None:
    """Raise ApiError if a grammar of functions is too large."""
    if characters > MAX_FORM:
        expected = f"functions of at most {MAX_FORM:,} characters, as a grammar, that are required or strict"
        raise wrong(expected, f"{characters:,}", "pass fewer or shorter ones", "tools")


def _required(choice: object, functions: Functions) -> tuple[str, ...]:
    """The functions one of which has to be called."""
    if choice in (None, NONE, AUTO):
        return ()
    if choice == REQUIRED:
        return tuple(functions)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name is None:
        expected = 'none, auto, required, or {"type": "function", "function": {"name": …}} as tool_choice'
        raise wrong(expected, shown(choice), "correct it", "tool_choice")
    if not isinstance(name, str) or name not in functions:
        raise wrong("a function of tools in tool_choice", shown(name), "correct it", "tool_choice")
    return (name,)


def _text(value: object) -> str:
    """The tools as JSON. Raises ApiError if they are too many, or nested too deeply."""
    if is_deep(value):
        raise wrong(f"tools of at most {MAX_DEPTH} levels", "more", "simplify their schemas", "tools")
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_SIZE:
        expected = f"tools of at most {MAX_SIZE:,} characters"
        raise wrong(expected, f"{len(text):,}", "pass fewer or shorter ones", "tools")
    return text


def _tool(value: object, param: str) -> dict[str, Any]:
    """A tool, as chat templates expect it."""
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(value.get("function"), dict):
        raise wrong(f"an object of type function, with a function, as {param}", shown(value), "correct it", param)
    fields = Fields(value["function"], f"{param}.function.")
    name, description = fields.text("name"), fields.text("description")
    schema = fields.take("parameters")
    fields.flag("strict")
    fields.end()
    if name is None or not NAME.fullmatch(name):
        expected = "a name of 1 to 64 letters, digits, _, - and ."
        raise wrong(f"{expected} as {fields.name('name')}", shown(name), "correct it", fields.name("name"))
    if schema is not None and not isinstance(schema, dict):
        param = fields.name("parameters")
        raise wrong(f"a JSON schema as {param}", shown(schema), "correct it", param)
    described = {} if description is None else {"description": description}
    parameters = schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}

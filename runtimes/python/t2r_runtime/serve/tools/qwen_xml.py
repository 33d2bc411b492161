"""Qwen3-Coder, Qwen3.5: tags for a function and for each of its arguments, whose types are those of the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from t2r_runtime.serve.tools.base import Format, Functions, Unfinished, skipped

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?")
END = "</parameter>"
WORDS = {"True": True, "False": False, "None": None}  # templates write constants as Python does
TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def read(text: str, functions: Functions) -> list[tuple[str, Any]]:
    """Functions with their parameters."""
    found: list[tuple[str, Any]] = []
    at = 0
    while not found or skipped(text, at) < len(text):
        function = FUNCTION.match(text, at)
        if function is None:
            raise ValueError("expected a function")
        arguments, at = _parameters(text, function.end(), functions.get(function[1], {}))
        found.append((function[1], arguments))
    return found


def _parameters(text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The arguments from this place on, and where the function ends."""
    found: dict[str, Any] = {}
    known = schema.get("properties")
    properties: Mapping[str, Any] = known if isinstance(known, dict) else {}
    while (parameter := PARAMETER.match(text, at)) is not None:
        end = text.find(END, parameter.end())
        if end < 0:
            raise Unfinished("a parameter without its end")
        found[parameter[1]] = typed(text[parameter.end() : end].removesuffix("\n"), properties.get(parameter[1]))
        at = skipped(text, end + len(END))
    if not text.startswith("</function>", at):
        raise ValueError("expected the end of the function")
    return found, at + len("</function>")


def typed(text: str, schema: object) -> Any:
    """The value of a parameter: of a type that its schema allows, else the text."""
    types = types_of(schema)
    if types == {"string"}:
        return text
    try:
        value = WORDS[text] if text in WORDS else json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not types:  # such as a reference
        return value if isinstance(value, dict | list) else text
    allowed = TYPES[type(value)] in types or (type(value) is int and "number" in types)
    return value if allowed and (value is None or "string" not in types) else text


def types_of(schema: object) -> set[str]:
    """The types that a schema allows; none if they are not said."""
    if not isinstance(schema, dict):
        return {"string"} if schema is None else set()
    named = schema.get("type")
    found = {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    if not found:
        found = {TYPES[type(value)] for value in values}
        for key in ("anyOf", "oneOf"):
            choices = schema.get(key)
            for each in choices if isinstance(choices, list) else []:
                found |= types_of(each)
    return found


FORMAT = Format("qwen-xml", "<tool_call>", "</tool_call>", read)

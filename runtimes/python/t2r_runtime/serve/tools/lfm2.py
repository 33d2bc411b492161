"""LFM2: a list of calls as in Python, or of objects in JSON, between tags."""

from __future__ import annotations

from typing import Any

from t2r_runtime.serve.tools.base import Format, Functions, Shape, json_calls
from t2r_runtime.serve.tools.values import Values, quoted


def read(text: str, functions: Functions) -> tuple[list[tuple[str, Any]], int]:
    """Calls of both forms; arguments of a call as in Python have names, and one call needs no brackets."""
    if text.lstrip(" \n\t[").startswith("{"):
        return json_calls(text, functions)
    values, found = Values(text, quoted), list[tuple[str, Any]]()
    listed = values.has("[")
    while not (values.has("]") if listed else found):
        if found:
            values.need(",")
        name = values.word()
        values.need("(")
        found.append((name, values.pairs(")", "=")))
    return found, values.at


SHAPE = Shape(
    '{"name": "{name}", "arguments": ',
    before="<|tool_call_start|>[",
    after="]<|tool_call_end|>",
    between=", ",
)
FORMAT = Format("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", read, shape=SHAPE)

"""LFM2: a list of calls as in Python, or of objects in JSON, between tags."""

from __future__ import annotations

from typing import Any

from t2r_runtime.serve.tools.base import Format, Functions, Shape, json_calls, skipped
from t2r_runtime.serve.tools.values import Values, quoted


def read(text: str, functions: Functions) -> list[tuple[str, Any]]:
    """Calls of both forms; arguments of a call as in Python have names."""
    if text.lstrip(" \n\t[").startswith("{"):
        return json_calls(text, functions)
    values, found = Values(text, quoted), list[tuple[str, Any]]()
    values.need("[")
    while not values.has("]"):
        if found:
            values.need(",")
        name = values.word()
        values.need("(")
        found.append((name, values.pairs(")", "=")))
    if skipped(text, values.at) < len(text):
        raise ValueError("expected the end")
    return found


SHAPE = Shape(
    '{"name": "{name}", "arguments": ',
    before="<|tool_call_start|>[",
    after="]<|tool_call_end|>",
    between=", ",
)
FORMAT = Format("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", read, shape=SHAPE)

"""Mistral: a list of objects in JSON, or since 2025 `NAME[ARGS]` and an object for each call."""

from __future__ import annotations

import re
from typing import Any

from t2r_runtime.serve.tools.base import Format, Functions, Shape, json_calls, json_value, skipped

BEGIN, ARGS = "[TOOL_CALLS]", "[ARGS]"
NAME = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")


def read(text: str, functions: Functions) -> tuple[list[tuple[str, Any]], int]:
    """Calls of both forms."""
    if text.lstrip().startswith(("[", "{")):
        return json_calls(text, functions)
    found, at, end = list[tuple[str, Any]](), 0, 0
    while (name := NAME.match(text, at)) is not None:
        value, end = json_value(text, name.end())
        found.append((name[1], value))
        at = skipped(text, end)
        at += len(BEGIN) if text.startswith(BEGIN, at) else 0
    return found, end


LIST = Shape('{"name": "{name}", "arguments": ', before="[TOOL_CALLS][", after="]", between=", ")
NAMES = Shape("[TOOL_CALLS]{name}[ARGS]", "", between="")
FORMAT = Format("mistral", BEGIN, "", read, (ARGS, "[CALL_ID]"), shape=LIST)
NAMED = Format("mistral-args", BEGIN, "", read, (ARGS, "[CALL_ID]"), shape=NAMES)

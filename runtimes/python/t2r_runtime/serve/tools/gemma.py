"""FunctionGemma and Gemma 4: `call:NAME{KEY:VALUE,…}` between tags, with strings between marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_runtime.serve.tools.base import Format, Functions, skipped
from t2r_runtime.serve.tools.values import Values, between

ESCAPE, QUOTE = "<escape>", '<|"|>'


def reader(mark: str) -> Callable[[str, Functions], tuple[list[tuple[str, Any]], int]]:
    """A reader of calls whose strings are between two of these marks."""

    def read(text: str, functions: Functions) -> tuple[list[tuple[str, Any]], int]:
        values, found = Values(text, between(mark)), list[tuple[str, Any]]()
        while not found or skipped(text, values.at) < len(text):
            values.need("call:")
            name = values.word()
            values.need("{")
            found.append((name, values.pairs("}", ":")))
        return found, values.at

    return read


FORMAT = Format("functiongemma", "<start_function_call>", "<end_function_call>", reader(ESCAPE), (ESCAPE,))
GEMMA4 = Format("gemma4", "<|tool_call>", "<tool_call|>", reader(QUOTE), (QUOTE,))

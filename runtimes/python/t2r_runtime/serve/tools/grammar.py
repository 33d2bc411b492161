"""The grammar of required calls: a format's tags, with arguments of each function's JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t2r_runtime.serve.schemas import json_value
from t2r_runtime.serve.tools.base import Functions, Shape


def grammar(
    shape: Shape, functions: Functions, names: Sequence[str], parallel: bool, special: Mapping[str, int]
) -> str:
    """A grammar in llguidance's Lark of one call, or several.

    Args:
        names: functions that may be called.
        parallel: allow several calls.
        special: special tokens by their text.

    Raises:
        ValueError: an unsupported schema.
    """
    calls = [f"call_{number}" for number in range(len(names))]
    more = "" if shape.between is None or not parallel else f" ({literal(shape.between, special)} call)*"
    lines = [
        f"start: {literal(shape.before, special)} call{more} {literal(shape.after, special)}",
        f"call: {' | '.join(calls)}",
    ]
    for call, name in zip(calls, names, strict=True):
        begin, end = (literal(text.replace("{name}", name), special) for text in (shape.call, shape.end))
        rules = shape.rules or json_rules
        lines += [f"{call}: {begin} {call}_arguments {end}", *rules(f"{call}_arguments", functions[name])]
    return "\n".join(["%llguidance {}", *lines])


def literal(text: str, special: Mapping[str, int]) -> str:
    """A text, with its special tokens by number."""
    if not text:
        return ""
    pattern = "|".join(map(re.escape, special))
    parts = re.split(f"({pattern})", text) if special else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part)


def json_rules(name: str, schema: Mapping[str, Any]) -> list[str]:
    """The rule of an object in JSON."""
    return [f"{name}: {json_value({'type': 'object', **schema})}"]

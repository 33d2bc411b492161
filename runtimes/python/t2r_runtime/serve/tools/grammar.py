"""The grammar of required calls: a format's tags, with arguments of each function's JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from t2r_runtime.serve.schemas import json_value
from t2r_runtime.serve.tools.base import Format, Functions, Shape

HEAD = "%llguidance {}"


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
    return "\n".join([HEAD, f"start: {_block(shape, parallel, special)}", *_calls(shape, functions, names, special)])


def free_grammar(format: Format, shape: Shape, functions: Functions, special: Mapping[str, int]) -> str:
    """A grammar of any text, in which calls have the form of `grammar`. Raises ValueError as it does."""
    if not shape.before.startswith(format.begin) and not shape.call.startswith(format.begin):
        lines = ["start: call | OTHER", r"OTHER: /\s*([^\s{](?s:.*))?/"]  # without a tag, calls begin the text
        return "\n".join([HEAD, *lines, *_calls(shape, functions, [*functions], special)])
    tag = literal(format.begin, special)
    begin = [f"begin: TEXT {tag}"] if format.begin in special else [f"begin[lazy]: TEXT {tag}"]
    within = replace(shape, before=shape.before.removeprefix(format.begin))
    if not shape.before:
        within = replace(shape, call=shape.call.removeprefix(format.begin), between=None)
    block = _block(within, True, special)
    lines = [f"start: (begin {block})* text", "text: TEXT", "TEXT: /(?s:.*)/", *begin]
    return "\n".join([HEAD, *lines, *_calls(within, functions, [*functions], special)])


def _block(shape: Shape, parallel: bool, special: Mapping[str, int]) -> str:
    more = "" if shape.between is None or not parallel else f" ({literal(shape.between, special)} call)*"
    return f"{literal(shape.before, special)} call{more} {literal(shape.after, special)}"


def _calls(shape: Shape, functions: Functions, names: Sequence[str], special: Mapping[str, int]) -> list[str]:
    """The rules of calls of these functions."""
    calls = [f"call_{number}" for number in range(len(names))]
    lines = [f"call: {' | '.join(calls)}"]
    for call, name in zip(calls, names, strict=True):
        begin, end = (literal(text.replace("{name}", name), special) for text in (shape.call, shape.end))
        rules = shape.rules or json_rules
        lines += [f"{call}: {begin} {call}_arguments {end}", *rules(f"{call}_arguments", functions[name])]
    return lines


def literal(text: str, special: Mapping[str, int]) -> str:
    """A text, with its special tokens by number."""
    if not text:
        return ""
    pattern = "|".join(map(re.escape, special))
    parts = re.split(f"({pattern})", text) if special else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part)


def json_rules(name: str, schema: Mapping[str, Any]) -> list[str]:
    """The rule of an object in JSON."""
    return [f"{name}: {json_value({**schema, 'type': 'object'})}"]

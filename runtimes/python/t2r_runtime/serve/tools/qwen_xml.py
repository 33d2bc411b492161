"""Qwen3-Coder, Qwen3.5: tags for a function and for each of its arguments, whose types are those of the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from t2r_runtime.serve.schemas import json_value
from t2r_runtime.serve.tools.base import Format, Functions, Shape, Unfinished, skipped

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?")
DEFINITION = re.compile(r"#/(\$defs|definitions)/([^/]+)")
END, LINE = "</parameter>", "\n"
STRING = {"type": "string"}  # schema of a parameter that has none
DEEPEST, MOST_SCHEMAS = 16, 256  # references that are followed, and schemas of one parameter
ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
# keywords of schemas whose values a grammar writes
OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"})
OF_TEXTS = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
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


def read(text: str, functions: Functions) -> tuple[list[tuple[str, Any]], int]:
    """Functions with their parameters."""
    found: list[tuple[str, Any]] = []
    at = 0
    while not found or skipped(text, at) < len(text):
        function = FUNCTION.match(text, at)
        if function is None:
            raise ValueError("expected a function")
        arguments, at = _parameters(text, function.end(), functions.get(function[1], {}))
        found.append((function[1], arguments))
    return found, at


def _parameters(text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The arguments from this place on, and where the function ends."""
    found: dict[str, Any] = {}
    properties = _object(schema, "properties")
    while (parameter := PARAMETER.match(text, at)) is not None:
        end = text.find(END, parameter.end())
        if end < 0:
            raise Unfinished("a parameter without its end")
        value = text[parameter.end() : end].removesuffix("\n")
        found[parameter[1]] = typed(value, types_of(properties.get(parameter[1], STRING), schema))
        at = skipped(text, end + len(END))
    if not text.startswith("</function>", at):
        raise ValueError("expected the end of the function")
    return found, at + len("</function>")


def typed(text: str, types: set[str]) -> Any:
    """The value of a parameter: of one of the types, else the text."""
    if types == {"string"}:
        return text
    try:
        value = WORDS[text] if text in WORDS else json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not types:
        return value if isinstance(value, dict | list) else text
    allowed = TYPES[type(value)] in types or (type(value) is int and "number" in types)
    return value if allowed and (value is None or "string" not in types) else text


def types_of(schema: object, root: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; none if they are not named.

    Args:
        root: the schema that has the definitions.
    """
    found, left, seen = set[str](), [schema], set[int]()
    while left and len(seen) < MOST_SCHEMAS:
        each = _resolved(left.pop(), root)
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        named = each.get("type")
        types = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
        found |= types or {TYPES[type(value)] for value in _values(each)}
        left += [] if types else _choices(each)
    return found


def _resolved(schema: object, root: Mapping[str, Any]) -> object:
    """The definition to which a schema refers; other schemas as they are."""
    for _ in range(DEEPEST):
        reference = DEFINITION.fullmatch(str(schema.get("$ref"))) if isinstance(schema, dict) else None
        if reference is None:
            break
        schema = _object(root, reference[1]).get(reference[2])
    return schema


def _object(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas of which a value has one."""
    return _list(schema, "anyOf") + _list(schema, "oneOf")


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema lists."""
    return [schema["const"]] if "const" in schema else _list(schema, "enum")


def rules(name: str, schema: Mapping[str, Any]) -> list[str]:
    """The rules of parameters, in the order of the schema: texts, or values in JSON. Raises ValueError."""
    _require(schema, OF_OBJECTS)
    properties, required = _object(schema, "properties"), _list(schema, "required")
    for key in required:
        if key not in [*properties]:
            raise ValueError(f"required {key}, which has no schema")
    parts, found = [f'{name}: ""'], list[str]()
    for number, (key, inner) in enumerate(properties.items()):
        if PARAMETER.fullmatch(f"<parameter={key}>") is None:
            raise ValueError(f"a parameter named {key}")
        rule = f"{name}_{number}"
        parts.append(rule if key in required else f"{rule}?")
        found.append(f"{rule}: {json.dumps(f'<parameter={key}>{LINE}')} {rule}_value {json.dumps(LINE)}")
        found += _value_rules(f"{rule}_value", inner, schema)
    return [" ".join(parts), *found]


def _value_rules(rule: str, schema: Any, root: Mapping[str, Any]) -> list[str]:
    if isinstance(schema, dict) and "$ref" in schema:
        _require(schema, frozenset({"$ref"}))
        schema = _resolved(schema, root)
    types = types_of(schema, root)
    if types and "string" not in types:
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return [f"{rule}: {json_value({**definitions, **schema})} {json.dumps(LINE + END)}"]
    _require(schema, OF_TEXTS)
    for each in _choices(schema):
        if not isinstance(each, dict) or each.get("type") not in (*TYPES.values(),) or each["type"] == "string":
            _require(each, frozenset({"type"}))
    values = _values(schema)
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a list of values of several types")
    if values:
        return [f"{rule}: ({' | '.join(map(json.dumps, values))}) {json.dumps(LINE + END)}"]
    return [f"{rule}[lazy]: /(?s:.*)/ {json.dumps(END)}"]


def _require(schema: Any, keywords: frozenset[str]) -> None:
    if not isinstance(schema, dict):
        raise ValueError("a schema that is no object")
    if unknown := schema.keys() - keywords - ANNOTATIONS:
        raise ValueError(f"the keyword {min(unknown)}")


SHAPE = Shape("<tool_call>\n<function={name}>\n", "</function>\n</tool_call>", between="\n", rules=rules)
FORMAT = Format("qwen-xml", "<tool_call>", "</tool_call>", read, shape=SHAPE, last="</function>")

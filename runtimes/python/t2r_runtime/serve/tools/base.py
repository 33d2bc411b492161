"""What a format of calls consists of, and calls in JSON, which most formats write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_DEPTH = 64  # objects and lists within each other
Functions = Mapping[str, Mapping[str, Any]]  # name -> JSON schema of its arguments


class Call(NamedTuple):
    """A call of a function; its arguments are the text of a JSON object."""

    name: str
    arguments: str


class Unfinished(ValueError):
    """A text of calls that ends within a string: the tag that ended it was a part of the string."""


@dataclass(frozen=True)
class Shape:
    """How calls are written, for a grammar.

    Args:
        before, after: texts around all calls.
        call, end: texts around the arguments of a call; `{name}` is the function.
        between: text between calls; None if there may be one only.
        rules: the rules of a name for arguments of a schema, in llguidance's Lark; None for those in JSON. Raises
            ValueError for an unsupported schema.
    """

    call: str
    end: str = "}"
    before: str = ""
    after: str = ""
    between: str | None = None
    rules: Callable[[str, Mapping[str, Any]], list[str]] | None = None


@dataclass(frozen=True)
class Format:
    """How a family of models writes calls.

    Args:
        name: as in `--tool-format`.
        begin: tag before calls.
        end: tag after calls; "" if they end with the text.
        read: returns the calls between the tags, each with its arguments, and where they end. Raises ValueError.
        tags: other texts that may be special tokens, which have no text otherwise.
        other: another tag before calls.
        bare: a text at the start of an answer also begins calls if it begins with this.
        shape: for a grammar; None if there is none.
        last: text before the end tag that some models leave out.
    """

    name: str
    begin: str
    end: str
    read: Callable[[str, Functions], tuple[list[tuple[str, Any]], int]]
    tags: tuple[str, ...] = ()
    other: str = ""
    bare: str = ""
    shape: Shape | None = None
    last: str = ""

    @property
    def special(self) -> tuple[str, ...]:
        """All texts that may be special tokens."""
        return (*self.begins, *self.tags, *([self.end] if self.end else []))

    @property
    def begins(self) -> tuple[str, ...]:
        """The tags before calls."""
        return (self.begin, self.other) if self.other else (self.begin,)

    def calls(self, text: str, functions: Functions) -> tuple[list[Call], str]:
        """The calls between the tags, and the text after them if there is no tag.

        Raises:
            Unfinished: the text ends within a string.
            ValueError: it is malformed, has no calls, or one of a function that there is not.
        """
        try:
            read, end = self.read(text, functions)
            found = [Call(name, _dumped(arguments)) for name, arguments in read]
        except RecursionError as error:
            raise ValueError("values that are nested too deeply") from error
        if not found or any(call.name not in functions for call in found) or (self.end and text[end:].strip()):
            raise ValueError("no calls of known functions, or more than calls")
        return found, "" if self.end else text[end:]


def _dumped(arguments: object) -> str:
    if isinstance(arguments, str):  # some models write the text of the object
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict) or is_deep(arguments):
        raise ValueError(f"arguments that are no object of at most {MAX_DEPTH} levels")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
    return text


def is_deep(value: object) -> bool:
    """Whether JSON data has more than `MAX_DEPTH` objects and lists within each other."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: object) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for each in found if isinstance(each, dict | list)]


DECODER = json.JSONDecoder()
BLANKS, SEPARATORS = re.compile(r"\s*"), re.compile(r"[\s;]*")


def skipped(text: str, at: int, pattern: re.Pattern[str] = BLANKS) -> int:
    """The place after the blanks at a place."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def json_value(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value at a place of a text, after blanks, and its end. Raises ValueError, Unfinished."""
    try:
        return DECODER.raw_decode(text, skipped(text, at))
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise Unfinished(error.msg) from error
        raise


def json_calls(text: str, functions: Functions) -> tuple[list[tuple[str, Any]], int]:
    """The calls of a JSON object, a list of objects, or objects with `;` or nothing between them, and their end."""
    found, at, end = list[tuple[str, Any]](), skipped(text, 0), 0
    while at < len(text) and (not found or text[at] in "{["):
        value, end = json_value(text, at)
        found += [_json_call(each) for each in (value if isinstance(value, list) else [value])]
        at = skipped(text, end, SEPARATORS)
    return found, end


def _json_call(value: object) -> tuple[str, Any]:
    """The name and the arguments of a call, as an object."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no object with a name")
    return value["name"], next((value[key] for key in ("arguments", "parameters") if key in value), {})

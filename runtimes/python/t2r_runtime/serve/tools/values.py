"""Reads values that are written as in Python or JavaScript, without running them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from t2r_runtime.serve.tools.base import MAX_DEPTH, Unfinished, skipped

CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
WORD = re.compile(r"[^\W\d][\w.-]*")
QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
ESCAPE = re.compile(r"\\(U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


class Values:
    """Reads a text from its start. Every method raises ValueError.

    Args:
        string: reads a string at this place; returns None if there is none.
    """

    def __init__(self, text: str, string: Callable[[Values], str | None]) -> None:
        self.text, self.at, self._string = text, 0, string

    def has(self, mark: str) -> bool:
        """Skip blanks, and the mark if it follows; returns whether it does."""
        self.at = skipped(self.text, self.at)
        found = self.text.startswith(mark, self.at)
        self.at += len(mark) if found else 0
        return found

    def need(self, mark: str) -> None:
        """Skip blanks and the mark, which must follow."""
        if not self.has(mark):
            raise ValueError(f"expected {mark}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern here, and skip it."""
        found = pattern.match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        return found

    def word(self) -> str:
        """A name."""
        self.at = skipped(self.text, self.at)
        found = self.match(WORD)
        if found is None:
            raise ValueError("expected a name")
        return found[0]

    def pairs(self, end: str, between: str, depth: int = 0) -> dict[str, Any]:
        """Names with values, to the end."""
        found: dict[str, Any] = {}
        while not self.has(end):
            if found:
                self.need(",")
            self.at = skipped(self.text, self.at)
            name = self._string(self)
            name = self.word() if name is None else name
            self.need(between)
            found[name] = self.value(depth + 1)
        return found

    def value(self, depth: int = 0) -> Any:
        """A string, a number, a constant, a list, or an object."""
        if depth > MAX_DEPTH:
            raise ValueError("values that are nested too deeply")
        self.at = skipped(self.text, self.at)
        if (text := self._string(self)) is not None:
            return text
        if (number := self.match(NUMBER)) is not None:
            return json.loads(number[0])
        if self.has("{"):
            return self.pairs("}", ":", depth)
        if self.has("["):
            values: list[Any] = []
            while not self.has("]"):
                if values:
                    self.need(",")
                values.append(self.value(depth + 1))
            return values
        word = self.word()
        if word not in CONSTANTS:
            raise ValueError("expected a value")
        return CONSTANTS[word]


def quoted(values: Values) -> str | None:
    """A string between quotes, with escapes as in Python."""
    if values.text[values.at : values.at + 1] not in ("'", '"'):
        return None
    found = values.match(QUOTED)
    if found is None:
        raise Unfinished("a string without its end")
    return ESCAPE.sub(_escaped, found[1] if found[2] is None else found[2])


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return ESCAPED.get(code, code if code in "'\"\\/" else found[0])


def between(mark: str) -> Callable[[Values], str | None]:
    """A reader of strings between two equal marks, without escapes."""

    def string(values: Values) -> str | None:
        if not values.text.startswith(mark, values.at):
            return None
        start = values.at + len(mark)
        end = values.text.find(mark, start)
        if end < 0:
            raise Unfinished("a string without its end")
        values.at = end + len(mark)
        return values.text[start:end]

    return string

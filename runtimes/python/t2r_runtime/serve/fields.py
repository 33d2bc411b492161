"""Fields of a request's JSON object, each checked when it is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from t2r_runtime.checks import is_number
from t2r_runtime.contract.options import BeamOptions, SamplingOptions
from t2r_runtime.errors import did_you_mean, no_json, printable
from t2r_runtime.serve.errors import ApiError, wrong

T = TypeVar("T")
# fields of OpenAI's API that have no effect
IGNORED = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"})
ENCODER = json.JSONEncoder(ensure_ascii=False)
LIKE = 0.75  # similarity of a field to one that is suggested; stream, a field of other endpoints, has 0.6 to beam
SHOWN = 100  # characters of a value in a message


def parsed(body: bytes) -> Fields:
    """Parse a body. Raises ApiError unless it is a JSON object of valid Unicode."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise wrong("a JSON object", _no_json(error), "correct the body") from error
    if not isinstance(value, dict):
        raise wrong("a JSON object", shown(value), "correct the body")
    return Fields(value)


def _no_constant(name: str) -> None:
    raise wrong("a JSON object", f"{name}, which JSON does not have", "correct the body")


def _no_json(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are not UTF-8, at offset {error.start}"
    parses = isinstance(error, json.JSONDecodeError | RecursionError)
    return no_json("a body", error) if parses else "an integer of too many digits"


def shown(value: object) -> str:
    """The start of a value, as JSON on one line that is safe to print."""
    text = ""
    for part in ENCODER.iterencode(value):  # lazily, as the value may be large or deep
        text += part
        if len(text) > SHOWN:
            break
    return printable(text, SHOWN)


class Fields:
    """The fields of an object; null means missing.

    Every method raises ApiError, which names the field.
    """

    def __init__(self, given: dict[str, Any], prefix: str = "") -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._prefix, self._known = prefix, set(IGNORED)

    def name(self, name: str) -> str:
        """The name of a field, with those of the objects that contain it."""
        return self._prefix + name

    def take(self, name: str) -> Any:
        """The value of a field, or None."""
        self._known.add(name)
        return self._given.get(name)

    def _checked(self, name: str, default: T, expected: str, good: Callable[[Any], bool], do: str = "correct it") -> T:
        value = self.take(name)
        if value is None:
            return default
        if not good(value):
            raise wrong(f"{expected} as {self._prefix}{name}", shown(value), do, self._prefix + name)
        found: T = value
        return found

    def text(self, name: str, default: str | None = None, most: int | None = None) -> str | None:
        """A text of at most `most` characters."""
        size = "" if most is None else f" of 1 to {most} characters"
        return self._checked(name, default, f"a text{size}", lambda value: is_text(value, most))

    def whole(self, name: str, default: int | None, least: int, most: int, do: str = "correct it") -> int | None:
        """An integer; the error says what to do."""
        return self._checked(
            name,
            default,
            f"an integer from {least} to {most}",
            lambda value: type(value) is int and least <= value <= most,
            do,
        )

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number."""
        expected = f"a number from {least:g} to {most:g}"
        return float(self._checked(name, default, expected, lambda value: is_number(value) and least <= value <= most))

    def option(self, name: str, table: type[SamplingOptions] | type[BeamOptions]) -> Any:
        """An option of `table`; None: not given."""
        rule = table.__dataclass_fields__[name].metadata
        value = self.take(name)
        if value is not None and not rule["valid"](value):
            raise wrong(rule["expected"], shown(value), "correct it", self._prefix + name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return self._checked(name, default, "true or false", lambda value: isinstance(value, bool))

    def texts(self, name: str, most: int, size: int) -> list[str]:
        """A text or a list of at most `most` texts, each of at most `size` characters."""
        value = self.take(name)
        found = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(found, list) or len(found) > most or not all(is_text(each, size) for each in found):
            expected = f"a text, or a list of at most {most} texts, of 1 to {size} characters, as {name}"
            raise wrong(expected, shown(value), "correct it", name)
        return found

    def inner(self, name: str) -> Fields:
        """The fields of a nested object; none if it is missing."""
        value: dict[str, Any] = self._checked(name, {}, "an object", lambda value: isinstance(value, dict))
        return Fields(value, f"{self._prefix}{name}.")

    def only(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Reject an unsupported feature, unless the value disables it."""
        value = self.take(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise wrong(f"no {self._prefix}{name}, which this server has not", shown(value), "leave it out", name)

    def rest(self) -> dict[str, Any]:
        """The fields that were not taken, with those that have no effect."""
        return {name: value for name, value in self._given.items() if name not in self._known - IGNORED}

    def end(self) -> None:
        """Reject fields that were not taken."""
        for name in self._given.keys() - self._known:
            do = did_you_mean(name, sorted(self._known - IGNORED), "leave it out", LIKE)
            raise ApiError(
                400,
                f"expected a known field; received {shown(self._prefix + name)}; {do}",
                printable(self._prefix + name, 100),
                "unknown_field",
            )


def is_text(value: object, most: int | None = None) -> bool:
    """Whether `value` is a text of valid Unicode, of 1 to `most` characters."""
    if not isinstance(value, str) or (most is not None and not 1 <= len(value) <= most):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True

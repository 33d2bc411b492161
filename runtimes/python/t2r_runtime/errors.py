"""Errors and their exit codes.

1  a failed check: the model did not pass (t2r_export.errors.CheckFailed)
2  UserError: an error that the user can fix, in one line
3  a bug: any other exception; the traceback is written to a file
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Literal, get_args

# kinds of errors in all languages: runtimes/CONTRACT.md, "Errors"
Kind = Literal[
    "file",
    "graph",
    "version",
    "metadata",
    "interface",
    "weights",
    "tokenizer",
    "token",
    "position",
    "batch",
    "snapshot",
    "sampling",
    "provider",
    "argument",
    "state",
    "memory",
    "runtime",
    "cancelled",
]
KINDS: tuple[str, ...] = get_args(Kind)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 6


class T2RError(Exception):
    """Base of errors that commands report in one line, with an exit code."""

    exit_code = 2
    prefix = ""  # start of the line


class UserError(T2RError, ValueError):
    """An error that the user can fix.

    Args:
        expected: what was expected.
        received: what was received instead.
        do: what to try next, as an instruction.
        kind: the kind of error; always given in t2r_runtime except for command lines, never in the toolchain.
    """

    exit_code = 2

    def __init__(self, expected: str, received: str, do: str, kind: Kind | None = None) -> None:
        # file names and messages of libraries may contain line breaks
        super().__init__(printable(f"expected {expected}; received {received}; {do}", None))
        self.expected, self.received, self.do, self.kind = expected, received, do, kind

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str, Kind | None]]:
        """Pickle all arguments; the default would pass the message as the first."""
        return type(self), (self.expected, self.received, self.do, self.kind)


def no_json(what: str, error: Exception) -> str:
    """Describe `what` that was read in place of JSON, with the parser's message and position."""
    if isinstance(error, RecursionError):
        return f"{what} with arrays or objects nested too deeply"
    message = getattr(error, "msg", None)  # of json.JSONDecodeError
    return printable(error) if message is None else f"{what} that is no JSON ({message} at character {error.pos + 1})"  # type: ignore[attr-defined]


def printable(text: object, limit: int | None = 300) -> str:
    """Convert a text or an exception to one line that is safe to print.

    White space is collapsed, unprintable characters are escaped, the prefix `[ONNXRuntimeError] : 1 : FAIL : ` is
    removed, and the line is truncated to `limit` characters. An exception without a message becomes its type.
    """
    line = " ".join(str(text).split())
    if line.startswith("[ONNXRuntimeError] : "):
        line = line.split(" : ", 3)[-1]
    if not line and isinstance(text, BaseException):
        line = type(text).__name__
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def shown(value: object) -> str:
    """The repr of a value on one short line that is safe to print."""
    try:
        return printable(_SHORT.repr(value), 100)
    except ValueError:  # an integer with too many digits to convert
        return f"a number of type {type(value).__name__}"


LONGEST_NAME = 100  # characters of a name that is compared with others; no known one is nearly as long


def did_you_mean(name: object, known: Iterable[str], otherwise: str, like: float = 0.6) -> str:
    """Suggest the known name nearest to a misspelt one; `otherwise` if none has at least the similarity `like`."""
    import difflib  # not needed for --help

    short = isinstance(name, str) and len(name) <= LONGEST_NAME
    near = difflib.get_close_matches(str(name), list(map(str, known)), 1, like) if short else []
    return f"did you mean {near[0]}?" if near else otherwise

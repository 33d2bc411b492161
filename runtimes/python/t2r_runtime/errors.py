"""What can go wrong, sorted by who can fix it.

A command of the toolchain ends in one of three ways besides success, each with an exit code:

    1  a check failed   the tools worked, the model did not pass (t2r_export.errors.CheckFailed)
    2  UserError        the user can fix it; one line says how
    3  a bug            any other exception; the traceback goes to a file
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Literal, get_args

# what is wrong, in the same words in every language: runtimes/CONTRACT.md, "Errors"
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
    """Base of the errors that a command turns into one line and an exit code."""

    exit_code = 2
    prefix = ""  # of the line


class UserError(T2RError, ValueError):
    """Something the user can fix.

    Args:
        expected: what should have been there.
        received: what was there instead.
        do: the next thing to try, as an instruction.
        kind: what it is about. All errors of t2r_runtime have one; those of the toolchain and of command lines have
            none.
    """

    exit_code = 2

    def __init__(self, expected: str, received: str, do: str, kind: Kind | None = None) -> None:
        # one line, whatever is quoted in it: the name of a file, another library's words
        super().__init__(printable(f"expected {expected}; received {received}; {do}", None))
        self.expected, self.received, self.do, self.kind = expected, received, do, kind

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str, Kind | None]]:
        """An error reaches another process whole: the default would pass the one line as the first argument."""
        return type(self), (self.expected, self.received, self.do, self.kind)


def printable(text: object, limit: int | None = 300) -> str:
    """A text, or an error's, on one line that is safe to print: it may quote a foreign file, or a library.

    Line breaks and repeated spaces become one space, unprintable characters are escaped, ONNX Runtime's preamble
    `[ONNXRuntimeError] : 1 : FAIL : ` is dropped, and the line is cut at `limit` characters. An error without a text is
    its type.
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
    """A value as Python spells it, on one line that is safe to print and no longer than a message can be."""
    try:
        return printable(_SHORT.repr(value), 100)
    except ValueError:  # an integer of more digits than Python writes
        return f"a number of type {type(value).__name__}"


def did_you_mean(name: object, known: Iterable[str], otherwise: str) -> str:
    """The known name that is nearest to a misspelt one, as a question; `otherwise` where none is near."""
    import difflib  # which `--help` does without

    near = difflib.get_close_matches(name, list(map(str, known)), n=1) if isinstance(name, str) else []
    return f"did you mean {near[0]}?" if near else otherwise

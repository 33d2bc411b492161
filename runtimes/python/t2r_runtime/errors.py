"""What can go wrong, sorted by who can mend it.

Three endings besides success, and an exit code for each (the command line is the only place that ends a process):

    1  CheckFailed  the tools worked, the model did not pass (parity out of tolerance)
    2  UserError    the person at the keyboard can mend it; one line says how
    3  a bug        any other exception; the traceback goes to a file

They live in the light package because the toolchain imports the runtime and never the other way round.
"""

from __future__ import annotations


class T2RError(Exception):
    """Base of the errors that a command turns into one line and an exit code."""

    exit_code = 2


class UserError(T2RError, ValueError):
    """Something the user can put right.

    Args:
        expected: what should have been there.
        received: what was there instead.
        do: the next thing to try, as an instruction.
    """

    exit_code = 2

    def __init__(self, expected: str, received: str, do: str) -> None:
        super().__init__(f"expected {expected}; received {received}; {do}")
        self.expected, self.received, self.do = expected, received, do

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        """An error reaches another process whole: the default would pass the one line as the first argument."""
        return type(self), (self.expected, self.received, self.do)


class CheckFailed(T2RError):
    """A check ran to its end and the answer is no (exit code 1)."""

    exit_code = 1


def printable(text: str, limit: int = 300) -> str:
    """Text from a stranger's file, fit for a terminal."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"

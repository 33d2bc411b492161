"""A line on stderr for each request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

from t2r_runtime.errors import printable

FORMATS = NONE, TEXT, JSON = "none", "text", "json"
Values = Mapping[str, str | int | float]


class Log:
    """Writes the lines of finished requests.

    Args:
        form: one of `FORMATS`.
    """

    def __init__(self, form: str = NONE) -> None:
        self._form = form

    def write(self, method: str, path: str, status: int, started: float, answer: Values | None = None) -> None:
        """Write a line.

        Args:
            status: HTTP status of the answer, or of the error that ended its stream.
            started: time.monotonic() when the request arrived.
            answer: id, model and numbers of tokens of an answer.
        """
        if self._form == NONE:
            return
        now = time.time()
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        took = {"milliseconds": round((time.monotonic() - started) * 1000, 1)}
        line = {"time": when, "method": method, "path": path, "status": status, **(answer or {}), **took}
        shown = json.dumps(line) if self._form == JSON else " ".join(_part(*pair) for pair in line.items())
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()


def _part(name: str, value: str | float) -> str:
    text = printable(value, 200)
    return text if name in ("time", "method", "path", "status") else f"{name}={text}"

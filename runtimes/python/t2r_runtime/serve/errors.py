"""Errors of requests, in OpenAI's form."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from t2r_runtime.errors import UserError, printable

INVALID, SERVER = "invalid_request_error", "server_error"  # error types
TOO_SLOW = 408  # the rest of the body is not waited for
OURS = ("graph", "weights", "interface", "metadata", "runtime", "memory")  # kinds of errors that no request can avoid


class ApiError(Exception):
    """An error that is returned to the client.

    Args:
        status: HTTP status.
        message: what was expected, what was received, and what to do.
        param: the field of the request.
        code: machine-readable code.
        retry: seconds after which another try may succeed.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = INVALID if self.status < 500 else SERVER
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        found = {} if self.retry is None else {"retry-after": str(self.retry)}
        return found | ({"connection": "close"} if self.status == TOO_SLOW else {})


def wrong(expected: str, received: str, do: str, param: str | None = None, status: int = 400) -> ApiError:
    """An error of a field."""
    return ApiError(status, printable(f"expected {expected}; received {received}; {do}", 600), param, "invalid_value")


def reported(error: Exception) -> ApiError:
    """As `of`; a bug is printed on stderr, and must not end the server."""
    if not isinstance(error, UserError | ApiError):
        traceback.print_exception(error, file=sys.stderr)
    return of(error)


def of(error: Exception, param: str | None = None) -> ApiError:
    """Convert any exception to an ApiError; that of a bug has no details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        status = 500 if error.kind in OURS else 400
        return ApiError(status, printable(str(error), 600), param, error.kind)
    return ApiError(500, "expected no bug; received one; see the server's stderr", code="bug")

"""Errors of the toolchain."""

from t2r_runtime.errors import T2RError


class CheckFailed(T2RError):
    """A check completed and failed (exit code 1)."""

    exit_code = 1
    prefix = "check failed: "

"""The error of the toolchain's own, for every room."""

from t2r_runtime.errors import T2RError


class CheckFailed(T2RError):
    """A check ran to its end and the answer is no (exit code 1)."""

    exit_code = 1
    prefix = "check failed: "

"""Entry points of `t2r` and `t2r-export`; `python -m t2r_export` is `t2r`."""

from __future__ import annotations

from t2r_runtime.__main__ import begin


def t2r() -> int:
    """Run `t2r` with the command-line arguments; returns the exit code."""
    return begin("t2r", "t2r_export.cli", "main")


def export() -> int:
    """Run `t2r-export` with the command-line arguments; returns the exit code."""
    return begin("t2r-export", "t2r_export.cli", "export_main")


if __name__ == "__main__":
    raise SystemExit(t2r())

"""Garbage collection is disabled during imports and frozen at process exit, and nowhere else."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from t2r_export.cli import main
from t2r_export.cli.startup import importing


def test_gc_enabled_after_import() -> None:
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_gc_stays_disabled() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_gc_enabled_after_failed_import() -> None:
    with pytest.raises(ImportError), importing():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


def test_gc_freeze_at_exit_only() -> None:
    """A program that calls `main` with arguments continues afterwards."""
    before = gc.get_freeze_count()
    main(["--version"])
    assert gc.get_freeze_count() == before
    program = "import gc, sys; sys.argv[1:] = ['--version']; from t2r_export.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", f"{program}; sys.exit(gc.get_freeze_count() == 0)"])
    assert done.returncode == 0

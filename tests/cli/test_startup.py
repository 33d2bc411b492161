"""The garbage collector is kept out of an import and of the end of a process, and nowhere else."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from t2r_export.cli import main
from t2r_export.cli.startup import importing


def test_garbage_is_collected_again_after_an_import() -> None:
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_had_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_is_collected_again_after_a_failed_import() -> None:
    with pytest.raises(ImportError), importing():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


def test_only_a_process_that_ends_freezes_what_it_holds() -> None:
    """A program that calls `main` with arguments goes on afterwards."""
    main(["--version"])
    assert gc.get_freeze_count() == 0
    program = "import gc, sys; sys.argv[1:] = ['--version']; from t2r_export.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", f"{program}; sys.exit(gc.get_freeze_count() == 0)"])
    assert done.returncode == 0

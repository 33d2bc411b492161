"""Benchmark programs load and print help. They run for hours, so tests do not run them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
PEERS = {"same_model.py"}  # imports engines that the tests do not install


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name not in PEERS], ids=lambda path: path.name)
def test_program_help(program: Path) -> None:
    names = runpy.run_path(str(program), run_name="loaded")
    assert callable(names["main"])
    assert f"    python benchmarks/{program.name}" in names["__doc__"]

"""Which tests run: all, --quick or --rest; of public data only where $T2R_DATA names it. And Hypothesis' profile.

With T2R_TURN=K/N, what --quick omits runs in N turns: cases whose names hash to K modulo N, and tests without cases by
the name of their file, so that one turn makes what they share. `.ci/run` takes one turn, another one for each commit.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import hypothesis
import pytest

EVERY = 24  # --quick keeps one case in so many

# the same cases in each run, however long one takes on a busy machine
hypothesis.settings.register_profile("t2r", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("t2r")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"run the first case of each test and one in {EVERY} of the others, and no test that is marked slow",
    )
    parser.addoption("--rest", action="store_true", help="run what --quick omits")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if "T2R_DATA" in os.environ or not _reads_data(item)]
    quick = _quick(wanted)
    if config.getoption("quick", False):
        wanted = [item for item in wanted if item in quick]
    elif config.getoption("rest", False):
        wanted = [item for item in wanted if item not in quick]
    if turn := os.environ.get("T2R_TURN"):
        place, count = map(int, turn.split("/"))
        wanted = [item for item in wanted if item in quick or _hash(_turn_of(item)) % count == place]
    kept = set(wanted)
    if omitted := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=omitted)
        items[:] = wanted


def _reads_data(item: pytest.Item) -> bool:
    return "data" in getattr(item, "fixturenames", ())


def _turn_of(item: pytest.Item) -> str:
    return item.nodeid if "[" in item.nodeid else item.nodeid.split("::")[0]


def _hash(name: str) -> int:
    return zlib.crc32(name.encode())


def _quick(items: list[pytest.Item]) -> set[pytest.Item]:
    """The first case of each test, and others by a hash of their names, so that a new case moves no other."""
    seen: set[str] = set()
    kept = set()
    for item in items:
        test = item.nodeid.split("[", 1)[0]
        if item.get_closest_marker("slow") or _reads_data(item):
            continue
        if test not in seen or _hash(item.nodeid) % EVERY == 0:
            kept.add(item)
        seen.add(test)
    return kept


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public checkpoints and texts, $T2R_DATA; tests that use it run only where it is set."""
    folder = Path(os.environ["T2R_DATA"])
    assert (folder / "checkpoints").is_dir(), f"expected T2R_DATA to name a folder with checkpoints; received {folder}"
    return folder

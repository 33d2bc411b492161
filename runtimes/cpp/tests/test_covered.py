"""What .ci/covered.py finds, and what it writes, with made-up figures; tox's environment `coverage` measures."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from cpp_build import ROOT

PAGE = """# Coverage

| files | lines | branches |
|---|---|---|
| libt2r: readers of files | 97.0 % of 100 | 80.0 % of 40 |
| provider | 70.0 % of 20 | 60.0 % of 10 |

## Files below the aim

| file | lines | branches | what is not covered |
|---|---|---|---|
| `libt2r/zip.cpp` | 97.0 % of 100 | 80.0 % of 40 | archives of more than 2 GiB |
"""


@pytest.fixture(scope="module")
def covered() -> ModuleType:
    spec = importlib.util.spec_from_file_location("covered", ROOT / ".ci" / "covered.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["covered"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def zipped(covered: ModuleType, lines: int, branches: int) -> dict[str, dict[str, object]]:
    return {"libt2r": {"zip.cpp": covered.Count((lines, 100), (branches, 40))}}


def test_published_figures_hold(covered: ModuleType) -> None:
    assert covered.problems(zipped(covered, 97, 32), PAGE) == []


@pytest.mark.parametrize(
    "lines, branches, said",
    [
        (94, 32, "libt2r: readers of files: expected 95.0 % of lines; received 94.0 %"),
        (97, 31, "libt2r: readers of files: expected 80.0 % of branches; received 77.5 %"),
    ],
)
def test_a_part_below_its_figures(covered: ModuleType, lines: int, branches: int, said: str) -> None:
    assert covered.problems(zipped(covered, lines, branches), PAGE) == [said]


def test_a_file_below_the_aim_needs_a_reason(covered: ModuleType) -> None:
    counts = zipped(covered, 100, 40)
    counts["libt2r"] |= {"npy.cpp": covered.Count((56, 60), (20, 20)), "utf8.cpp": covered.Count((1, 3), (1, 3))}
    (said,) = covered.problems(counts, PAGE)
    assert said == "libt2r/npy.cpp: expected the aim, or a reason on the page; received 93.3 % of 60 | 100.0 % of 20"
    assert covered.problems(counts, PAGE, of_files=False) == []


def test_a_new_part_has_the_aim(covered: ModuleType) -> None:
    counts = {"python": {"files.py": covered.Count((18, 20), (10, 10))}}
    assert covered.problems(counts, PAGE) == [
        "python: readers of files: expected 95.0 % of lines; received 90.0 %",
    ]


def test_the_page_keeps_reasons_and_other_parts(covered: ModuleType) -> None:
    counts = zipped(covered, 98, 30)
    counts["libt2r"]["npy.cpp"] = covered.Count((5, 10), (1, 10))
    page = covered.written(counts, PAGE)
    assert "| provider | 70.0 % of 20 | 60.0 % of 10 |" in page
    assert "| `libt2r/zip.cpp` | 98.0 % of 100 | 75.0 % of 40 | archives of more than 2 GiB |" in page
    assert "| `libt2r/npy.cpp` | 50.0 % of 10 | 10.0 % of 10 |  |" in page
    assert [said.split(":")[0] for said in covered.problems(counts, page)] == ["libt2r/npy.cpp"]
    assert covered.written(counts, page) == page
    mended = {"libt2r": {"zip.cpp": covered.Count((100, 100), (40, 40))}}
    assert "zip.cpp" not in covered.written(mended, page)


def test_files_are_those_of_the_runtimes(covered: ModuleType) -> None:
    """Every pattern of a reader names a file that there is."""
    folders = {"libt2r": "runtimes/cpp/src", "python": "runtimes/python/t2r_runtime"}
    for part, folder in folders.items():
        for pattern in covered.READERS[part].split():
            assert list((ROOT / folder).glob(pattern)), pattern


def test_parts_take_turns(covered: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("T2R_TURN", raising=False)
    assert covered.turn(["a", "b"]) == ["a", "b"]
    found = []
    for number in range(3):
        monkeypatch.setenv("T2R_TURN", f"{number}/3")
        found.append(covered.turn(["a", "b"]))
    assert found == [["a"], ["b"], []]

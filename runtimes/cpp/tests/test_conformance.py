"""The golden files of models/tiny through the C++ runtime; and faults in them, which it must see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, Run, headers
from golden_faults import cross_states, exchange_merges, write_late_sampler

from golden.faults import FAULTS, put


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))


def failures(run: Run, program: Path, folder: Path) -> set[str]:
    lines = run(program, folder, status=1).stdout.splitlines()
    return {line.split()[1].rstrip(":") for line in lines[:-1] if line.startswith("FAILED ")}


def test_golden_files(checked: Path, run: Run) -> None:
    lines = run(checked / "t2r_conformance", GOLDEN).stdout.splitlines()
    cases = [case["case"] for case in json.loads((GOLDEN / "index.json").read_text())["cases"]]
    assert lines == [*(f"ok {case}" for case in cases), f"{len(cases)} passed, 0 failed"]


def test_two_states_crossed(checked: Path, run: Run, copy: Path) -> None:
    cross_states(copy)
    assert "tiny" in failures(run, checked / "t2r_conformance", copy)


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_two_merges_exchanged(checked: Path, run: Run, copy: Path, name: str) -> None:
    exchange_merges(copy, name)
    assert f"text-{name}" in failures(run, checked / "t2r_conformance", copy)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_wrong_runtime_does_is_seen(release: Path, run: Run, copy: Path, fault: str) -> None:
    case = put(fault, copy)
    assert failures(run, release / "t2r_conformance", copy) == {case}


def test_a_sampler_off_by_one_draw(release: Path, run: Run, tmp_path: Path) -> None:
    """The program, linked with a sampler of whose noise each draw takes the next but one."""
    write_late_sampler(tmp_path / "sampler.cpp")
    objects = list((release / "CMakeFiles" / "t2r_conformance.dir").rglob("*.o"))
    libraries = [str(release / "libt2r.a"), f"-L{release / 'onnxruntime'}", "-lonnxruntime", "-lpthread"]
    flags = [
        "-std=c++17",
        f"-I{HERE / 'src'}",
        f"-I{HERE / 'include'}",
        *headers(),
        f"-Wl,-rpath,{release / 'onnxruntime'}",
    ]
    compiler = os.environ.get("CXX", "c++")
    command = [
        compiler,
        *flags,
        str(tmp_path / "sampler.cpp"),
        *map(str, objects),
        *libraries,
        "-o",
        str(tmp_path / "wrong"),
    ]
    subprocess.run(command, check=True, timeout=300)
    assert failures(run, tmp_path / "wrong", GOLDEN) >= {"sampling-tiny", "sampling-top3"}


@pytest.mark.parametrize("content", [None, "{", '{"golden": 2, "cases": []}', '{"golden": 1}'])
def test_no_golden_files(checked: Path, run: Run, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    line = run(checked / "t2r_conformance", tmp_path, status=2).stderr
    assert line.startswith("expected ") and line.count("\n") == 1


def test_a_kind_that_is_not_known(checked: Path, run: Run, copy: Path) -> None:
    index = json.loads((copy / "index.json").read_text())
    index["cases"].append({"case": "new", "kind": "another", "file": "tiny.json"})
    (copy / "index.json").write_text(json.dumps(index))
    assert failures(run, checked / "t2r_conformance", copy) == {"new"}

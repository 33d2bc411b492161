"""The golden files of models/tiny with the C++ runtime; and faults, which the program must detect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, SANITIZERS, Run, headers
from golden_faults import cross_states, exchange_merges, write_late_sampler, write_mutants

from golden.faults import FAULTS, put
from golden.mutants import MUTANTS, only


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


def test_onnx_runtime_sends_nothing(checked: Path, copy: Path, tmp_path: Path) -> None:
    """Its own builds of 1.29 and later would leave events in this folder for a server of theirs."""
    only(copy, "clamp")
    (home := tmp_path / "home").mkdir()
    known = {key: value for key, value in os.environ.items() if key not in ("CI", "ORT_DISABLE_TELEMETRY")}
    known |= SANITIZERS | {"HOME": str(home), "XDG_CACHE_HOME": ""}
    subprocess.run([checked / "t2r_conformance", copy], check=True, env=known, timeout=300)
    assert list(home.rglob("*")) == []


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


def linked(release: Path, program: Path, *sources: str) -> Path:
    """Link the conformance program with other sources of the library."""
    objects = map(str, (release / "CMakeFiles" / "t2r_conformance.dir").rglob("*.o"))
    libraries = [str(release / "libt2r.a"), f"-L{release / 'onnxruntime'}", "-lonnxruntime", "-lpthread"]
    flags = ["-std=c++17", f"-Wl,-rpath,{release / 'onnxruntime'}"]
    command = [os.environ.get("CXX", "c++"), *flags, *sources, *objects, *libraries, "-o", str(program)]
    subprocess.run(command, check=True, timeout=500)
    return program


def test_a_sampler_off_by_one_draw(release: Path, run: Run, tmp_path: Path) -> None:
    """The program, linked with a sampler in which each draw uses the noise of the next one."""
    write_late_sampler(tmp_path / "sampler.cpp")
    includes = [f"-I{HERE / 'src'}", f"-I{HERE / 'include'}", *headers()]
    wrong = linked(release, tmp_path / "wrong", *includes, str(tmp_path / "sampler.cpp"))
    assert failures(run, wrong, GOLDEN) >= {"sampling-tiny", "sampling-top3"}


@pytest.fixture(scope="session")
def wrong(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, linked with sources whose fault $T2R_MUTANT selects."""
    folder = tmp_path_factory.mktemp("mutants")
    return linked(release, folder / "wrong", *write_mutants(folder))


@pytest.mark.parametrize("name", [None, *MUTANTS])
def test_a_wrong_runtime_fails(
    wrong: Path, run: Run, copy: Path, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fault its case fails; without a fault no case fails."""
    if name is None:
        only(copy, *(mutant["case"] for mutant in MUTANTS.values()))
        run(wrong, copy)
        return
    case = MUTANTS[name]["case"]
    only(copy, case)
    monkeypatch.setenv("T2R_MUTANT", name)
    assert failures(run, wrong, copy) == {case}


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

"""The runtimes above libt2r: the golden files through each, faults in them, bad use, and the programs in the docs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, Run, headers
from golden_faults import cross_states, exchange_merges, write_late_sampler

from t2r_runtime import Decoder, Sampling, Tokenizer


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))


def failures(run: Run, folder: Path, library: Path | None = None) -> set[str]:
    lines = run("conformance", folder, status=1, library=library).stdout.decode().splitlines()
    return {line.split()[1].rstrip(":") for line in lines[:-1] if line.startswith("FAILED ")}


def test_golden_files(run: Run) -> None:
    lines = run("conformance", GOLDEN).stdout.decode().splitlines()
    cases = [case["case"] for case in json.loads((GOLDEN / "index.json").read_text())["cases"]]
    assert lines == [*(f"ok {case}" for case in cases), f"{len(cases)} passed, 0 failed"]


def test_two_states_crossed(run: Run, copy: Path) -> None:
    cross_states(copy)
    assert failures(run, copy) >= {"tiny"}


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_two_merges_exchanged(run: Run, copy: Path, name: str) -> None:
    exchange_merges(copy, name)
    assert f"text-{name}" in failures(run, copy)


@pytest.fixture(scope="session")
def late(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libt2r of whose sampler's noise each draw takes the next but one."""
    folder = tmp_path_factory.mktemp("late")
    write_late_sampler(folder / "sampler.cpp")
    objects = release / "CMakeFiles" / "t2r_objects.dir" / "src"
    others = [path for path in objects.glob("*.o") if path.name != "sampler.cpp.o"]
    includes = [f"-I{HERE / 'src'}", f"-I{HERE / 'include'}", *headers()]
    links = [f"-L{release / 'onnxruntime'}", "-lonnxruntime", f"-Wl,-rpath,{release / 'onnxruntime'}"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-DT2R_BUILDING", "-Wl,-soname,libt2r.so.0"]
    made = ["-o", str(folder / "libt2r.so.0")]
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *flags, *includes, str(folder / "sampler.cpp"), *map(str, others), *links, *made]
    subprocess.run(command, check=True, timeout=300)
    (folder / "libt2r.so").symlink_to("libt2r.so.0")
    return folder


def test_a_sampler_off_by_one_draw(run: Run, late: Path) -> None:
    assert failures(run, GOLDEN, late) >= {"sampling-tiny", "sampling-top3"}


@pytest.mark.parametrize("content", [None, "{", '{"golden": 2, "cases": []}', '{"golden": 1}'])
def test_no_golden_files(run: Run, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    line = run("conformance", tmp_path, status=2).stderr.decode()
    assert line.startswith("file: expected ") and line.count("\n") == 1


def test_a_kind_that_is_not_known(run: Run, copy: Path) -> None:
    index = json.loads((copy / "index.json").read_text())
    index["cases"].append({"case": "new", "kind": "another", "file": "tiny.json"})
    (copy / "index.json").write_text(json.dumps(index))
    assert failures(run, copy) == {"new"}


MISUSES = {  # and what comes of them
    "no-file": "file: expected an ONNX file; received ",
    "zero-byte": "file: expected a path; received one with a zero byte in it; ",
    "prefill-graph": "graph: expected a step graph; received a prefill graph; ",
    "token": "token: expected tokens in 0 … 16; received 17; ",
    "position": "position: expected at most 40 tokens, ",
    "batch": "batch: expected tokens of 1 sequences; received 2; ",
    "rows": "batch: expected rows of one length; received 2 and 1 tokens; ",
    "other-model": "snapshot: expected a snapshot of the checkpoint ",
    "no-utf8": "tokenizer: expected text in UTF-8; ",
    "closed": "graph: expected an open decoder; received one that was closed",
    "closed-tokenizer": "graph: expected an open tokenizer; received one that was closed",
    "two-threads": "graph: expected one call at a time in a decoder; ",
    "from-a-callback": "graph: expected one call at a time in a decoder; ",
}
UNSAYABLE = {
    # they do not compile: lib.rs has "closed" and "two-threads" tried, the other two are refused for the same reasons
    "rust": {"closed", "closed-tokenizer", "two-threads", "from-a-callback"},
    "java": {"zero-byte"},  # no java.nio.file.Path has one
}


@pytest.mark.parametrize("name", MISUSES)
def test_bad_use(run: Run, language: str, name: str) -> None:
    """One line, which begins with the kind, and the exit code 2."""
    if name in UNSAYABLE.get(language, ()):
        return
    done = run("misuse", GOLDEN, name, status=2)
    line = done.stderr.decode()
    assert line.startswith(MISUSES[name]) and line.count("\n") == 1 and not done.stdout


def test_a_callback_that_breaks(run: Run) -> None:
    """What it throws comes out, not through C, and the decoder goes on."""
    assert run("misuse", GOLDEN, "callback").stdout == b"mine\n"


def test_a_story(run: Run, language: str) -> None:
    """As Python writes it, piece by piece; and what is wrong with a graph or a text in one line."""
    graph, prompt = GOLDEN / "bytes.onnx", "abc"
    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    tokens = decoder.generate(tokenizer.encode(prompt), 200, Sampling(temperature=0))
    assert run("story", graph, prompt).stdout.decode() == prompt + tokenizer.decode(tokens) + "\n"
    for arguments, kind in (("nowhere.onnx", prompt), "file"), ((graph, b"\xff"), "tokenizer"):
        if kind == "tokenizer" and language == "java":
            continue  # its virtual machine makes characters of what is none
        line = run("story", *arguments, status=2).stderr.decode()
        assert line.startswith(f"{kind}: expected ") and line.count("\n") == 1

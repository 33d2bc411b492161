"""The examples of the bindings run in a new project, as docs/embedding.md describes; bindings match t2r.h."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from bindings.declarations import HEADER, WRITTEN, parse
from bindings_build import Place, Programs, jdk
from cpp_build import GOLDEN, PAGE, ROOT, Run, fenced


def rust(place: Place, folder: Path) -> Programs:
    (folder / "src").mkdir()
    shutil.copy(place.source / "examples" / "story.rs", folder / "src" / "main.rs")
    (folder / "Cargo.toml").write_text(fenced("toml").replace("runtimes/rust", str(place.source)))
    place.run("cargo", "build", "--jobs", 2, "--release", folder=folder)
    return {"mine": [place.build / "release" / "story"]}


def go(place: Place, folder: Path) -> Programs:
    shutil.copy(place.source / "cmd" / "story" / "main.go", folder)
    for line in re.findall(r"^    go mod (.*)$", PAGE, re.MULTILINE):
        place.run("go", "mod", *line.replace("runtimes/go", str(place.source)).split(), folder=folder)
    place.run("go", "build", "-p", 2, folder=folder)
    return {"mine": [folder / "story"]}


def java(place: Place, folder: Path) -> Programs:
    """Run from its source, as the page says."""
    found = re.search(r"^    java (.*) -cp build/java/t2r.jar Story.java ", PAGE, re.MULTILINE)
    assert found
    return {
        "mine": [*jdk(), "java", found[1], "-cp", place.build / "t2r.jar", place.source / "programs" / "Story.java"]
    }


ABSENT = {
    "rust": {"t2r_version": "the loader compares sonames"},
    "go": {"t2r_version": "the loader compares sonames"},
    "java": {"t2r_kind_name": "a kind is an enum, which prints itself"},
}
CALLS = {"rust": r"sys::(t2r_\w+)\(", "go": r"C\.(t2r_\w+)\(", "java": r'Declarations\.([A-Z]\w+)|"(t2r_\w+)"'}


@pytest.mark.parametrize("name", ABSENT)
def test_a_binding_calls_all_of_the_header(name: str) -> None:
    """Each function of t2r.h is called, except those listed in ABSENT."""
    folder = ROOT / "runtimes" / name
    files = [path for end in ("rs", "go", "java") for path in folder.glob(f"**/*.{end}") if path not in WRITTEN]
    found = re.findall(CALLS[name], "\n".join(path.read_text("utf-8") for path in files))
    called = {f"t2r_{''.join(one).lower().removeprefix('t2r_')}" for one in found}
    assert set(parse(HEADER.read_text("utf-8")).functions) - called == set(ABSENT[name])


def kinds(path: str, block: str, pattern: str) -> list[str]:
    """The kinds of errors in the first block of a file, below runtimes/."""
    found = re.search(block, (ROOT / "runtimes" / path).read_text("utf-8"), re.DOTALL)
    assert found, path
    return [kind.lower() for kind in re.findall(pattern, found[1])]


def test_every_language_has_the_contracts_kinds() -> None:
    """All of them and no others, in the order of t2r.h, by which the bindings number them."""
    contract = kinds("CONTRACT.md", r"## Errors\n(.*)", r"(?m)^\| `(\w+)` \|")
    assert len(contract) > 10
    for path, block, pattern in (
        ("cpp/include/t2r.h", r"T2R_OK = 0,(.*?)\} t2r_kind;", r"(?m)^    T2R_(\w+)"),
        ("cpp/src/api.cpp", r'kind_names\[\] = \{"ok",(.*?)\}', r'"(\w+)"'),
        ("rust/src/error.rs", r"pub enum Kind \{(.*?)\n\}", r"(?m)^    (\w+)(?: = 1)?,$"),
        ("rust/src/error.rs", r"const KINDS: [^=]*= \[(.*?)\]", r"Kind::(\w+)"),
        ("go/error.go", r"const \((.*?)\n\)", r"= C\.T2R_(\w+)"),
        ("java/src/t2r/Kind.java", r"enum Kind \{(.*)\}", r"(?m)^    (\w+)[,;]$"),
        ("js/src/errors.js", r"KINDS = Object.freeze\(\[(.*?)\]", r'"(\w+)"'),
        ("python/t2r_runtime/errors.py", r"Kind = Literal\[(.*?)\]", r'"(\w+)"'),
    ):
        assert kinds(path, block, pattern) == contract, path


PROJECTS = {"rust": rust, "go": go, "java": java}


@pytest.fixture
def mine(place: Place, programs: Programs, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in PROJECTS[language](place, tmp_path).items():
        monkeypatch.setitem(programs, name, command)


def test_a_program_of_ones_own(mine: None, run: Run) -> None:
    graph, prompt = GOLDEN / "bytes.onnx", "abc"
    assert run("mine", graph, prompt).stdout == run("story", graph, prompt).stdout

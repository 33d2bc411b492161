"""Import rules between rooms, and modules that `--help` must not load.

The tables below are the only definition of the rules; docs/architecture.md draws them. A room is a folder of
t2r_export; the top-level modules of `t2r_export` are the stages of the pipeline.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from t2r_runtime.cli import VERBS as RUN_VERBS

HEAVY = {"torch", "onnx", "onnxruntime", "transformers", "accelerate", "tokenizers"}


@dataclass(frozen=True)
class Room:
    """Allowed imports of one folder's files: rooms of t2r_export, and heavy third-party packages."""

    rooms: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)


PIPELINE = "t2r_export"  # top-level modules
ROOMS = {
    "config": Room({"config"}),
    "model": Room({"config", "model", "model.mixers", "model.parts", "model.positions"}, {"torch"}),
    "model.positions": Room({"config", "model", "model.positions"}, {"torch"}),
    "model.mixers": Room({"config", "model", "model.mixers", "model.positions"}, {"torch"}),
    "model.parts": Room({"config", "model", "model.mixers", "model.parts", "model.positions"}, {"torch"}),
    "lab.config": Room({"config", "lab.config"}),
    "lab": Room({"config", "model", "model.mixers", "model.parts", "model.positions", "lab", "lab.config"}, {"torch"}),
    "checkpoints": Room({"config", "model", "model.positions", "checkpoints"}, {"torch", "tokenizers"}),
    "graph": Room({"config", "model", "graph"}, {"torch", "onnx", "onnxruntime"}),
    "data": Room({"config", "data"}, {"torch", "tokenizers"}),
    "batches": Room({"config", "model", "data", "batches"}, {"torch", "tokenizers"}),
    "quantizers": Room({"config", "graph", "data", "quantizers"}, {"onnx", "onnxruntime"}),
    "quality": Room({"config", "model", "checkpoints", "graph", "data", "batches", "quality"}, {"torch"}),
    "training": Room(
        {"config", "model", "model.mixers", "model.parts", "checkpoints"}
        | {"data", "batches", "quantizers", "quality", "training"},
        {"torch", "accelerate", "tokenizers"},
    ),
    "pruning": Room(
        {"config", "model", "model.parts", "model.positions", "checkpoints", "data", "batches"}
        | {"quality", "training", "pruning"},
        {"torch"},
    ),
    "proof": Room({"config", "model", "model.mixers", "model.parts", "checkpoints", "graph", "proof"}, {"torch"}),
    PIPELINE: Room(
        {PIPELINE, "config", "model", "model.mixers", "model.parts", "model.positions", "checkpoints", "graph"}
        | {"data", "batches", "training", "pruning"}
        | {"quantizers", "quality", "proof"},
        {"torch", "accelerate", "onnx", "onnxruntime", "tokenizers"},
    ),
    "providers": Room(
        {PIPELINE, "config", "model", "checkpoints", "graph", "data", "quantizers", "proof", "providers"},
        HEAVY,
    ),
    "cli": Room({"*"}, {"onnxruntime"}),
}
RUNTIME: dict[str, set[str]] = {  # rooms of t2r_runtime, and the rooms each may import
    "contract": set(),
    "text": {"contract"},
    "session": {"contract"},
    "decode": {"contract", "text", "session"},
    "translate": {"contract", "text", "session", "decode"},
    "serve": {"contract", "text", "session", "decode", "translate"},
    "cli": {"contract", "text", "session", "decode", "translate", "serve"},
}
# folder and files of a room of the repository -> most lines
LINES = {
    ("t2r_export", "*.py"): 46_115,
    ("t2r_export/lab", "*.py"): 1_700,
    ("runtimes/python/t2r_runtime", "*.py"): 16_110,
    ("tests", "*.py"): 62_335,
    ("benchmarks", "*.py"): 8_590,
    ("docs", "*.md"): 4_965,
}
# allowed in every room
SHARED = {f"t2r_export{name}" for name in ("", ".version", ".errors", ".files", ".paths", ".python")}
# Rings: the core imports neither training nor the lab, and these two not each other. The command line and Python API
# are above all three; the tables of kinds name the lab's classes as text.
TRAINING = {"batches", "quality", "training", "pruning", "build.py", "distill.py", "finetune.py"}
LAB = {"lab", "lab.config"}
ABOVE_RINGS = {"cli", "api.py"}
APART = "remote"  # copied beside weights, it runs without our package: tests/checkpoints/hub/test_student.py
ONNX_STAGES = {"quantize.py"}  # pipeline stages that change a finished graph
# modules of model/ that mixers and parts may not import
ABOVE = {f"t2r_export.model.{name}" for name in ("transformer", "stack", "encoder", "block")}


def folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def modules(package: str, pattern: str = "**/*.py") -> list[Path]:
    return sorted(folder(package).glob(pattern))


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """Every imported module, also in functions and for types, and whether its import runs at module import."""
    tree = ast.parse(source)
    later = {inner for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in later) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here, so that a search finds them"
            assert node.module
            yield node.module, node not in later
            yield from ((f"{node.module}.{alias.name}", node not in later) for alias in node.names)


def room_of(module: str) -> str:
    """The room of a t2r_export module, by its dotted name."""
    parts = module.split(".")[1:]
    if ".".join(parts[:2]) in ROOMS:
        return ".".join(parts[:2])
    return parts[0] if parts and parts[0] in ROOMS else PIPELINE


def allowed(room: str, file: str, name: str, at_import: bool) -> bool:
    """Whether a file of a room may import the module `name`."""
    rules, top = ROOMS[room], name.partition(".")[0]
    if top == "t2r_export":
        if name in SHARED or name.rpartition(".")[0] in SHARED - {"t2r_export"}:
            return True
        if rules.rooms == {"*"}:
            return True
        return room_of(name) in rules.rooms and not (room.startswith("model.") and name in ABOVE)
    if top == "onnx" and room == PIPELINE:
        return file in ONNX_STAGES
    if top in HEAVY:  # the command line may import it inside a function
        return top in rules.packages or (room == "cli" and not at_import)
    return top != "click" or room == "cli"


def refused(room: str, file: str, source: str) -> list[str]:
    """The forbidden imports of a file."""
    return sorted({name for name, at_import in imports(source) if not allowed(room, file, name, at_import)})


def rooms() -> Iterator[tuple[str, Path]]:
    root = folder("t2r_export")
    for file in modules("t2r_export"):
        place = file.relative_to(root)
        if place.name != "__main__.py" and APART not in place.parts:
            yield room_of(".".join(["t2r_export", *place.with_suffix("").parts])), file


@pytest.mark.parametrize("room", ROOMS)
def test_arrows(room: str) -> None:
    files = [file for name, file in rooms() if name == room]
    assert files
    wrong = {f.name: names for f in files if (names := refused(room, f.name, f.read_text(encoding="utf-8")))}
    assert wrong == {}


def ring_of(module: str) -> str:
    """core, training, lab, or above; by the module's dotted name."""
    room = room_of(module)
    place = f"{module.split('.')[1]}.py" if room == PIPELINE and "." in module else room
    rings = {"training": TRAINING, "lab": LAB, "above": ABOVE_RINGS}
    return next((ring for ring, places in rings.items() if place in places), "core")


def beyond(ring: str, source: str) -> list[str]:
    """The imports of a file that its ring may not have."""
    closed = {"core": {"training", "lab"}, "training": {"lab"}, "lab": {"training"}, "above": set()}[ring]
    return sorted({name for name, _ in imports(source) if name.startswith("t2r_export") and ring_of(name) in closed})


def test_rings() -> None:
    root = folder("t2r_export")
    wrong = {}
    for _, file in rooms():
        module = ".".join(["t2r_export", *file.relative_to(root).with_suffix("").parts])
        if names := beyond(ring_of(module), file.read_text(encoding="utf-8")):
            wrong[module] = names
    assert wrong == {}


@pytest.mark.parametrize(
    "ring, source",
    [
        ("core", "from t2r_export.training.stages import x"),
        ("core", "def f():\n    from t2r_export.finetune import finetune"),
        ("core", "from t2r_export.lab.config.span import SpanConfig"),
        ("training", "from t2r_export import lab"),
        ("lab", "import t2r_export.batches.batch"),
    ],
)
def test_import_beyond_a_ring_is_refused(ring: str, source: str) -> None:
    assert beyond(ring, source)


FORBIDDEN = [
    ("config", "x.py", "import torch"),
    ("config", "x.py", "from t2r_export.model import ops"),
    ("model", "x.py", "import onnx"),
    ("model", "x.py", "from t2r_export.graph.recorder import GraphOps"),
    ("model", "x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import t2r_export.export"),
    ("model.mixers", "x.py", "from t2r_export.model.transformer import Transformer"),
    ("model.mixers", "x.py", "from t2r_export.training.lora import x"),
    ("model.mixers", "x.py", "from t2r_export.model.parts.base import Part"),
    ("model.parts", "x.py", "from t2r_export.model.block import Block"),
    ("checkpoints", "x.py", "from t2r_export.convert import convert"),
    ("checkpoints", "x.py", "import transformers"),
    ("graph", "x.py", "from t2r_export.export import export"),
    ("training", "x.py", "import onnx"),
    ("quantizers", "x.py", "import torch"),
    ("proof", "x.py", "from t2r_export.verify import verify"),
    (PIPELINE, "verify.py", "import onnx"),
    (PIPELINE, "export.py", "from t2r_export.cli import output"),
    (PIPELINE, "export.py", "import click"),
    ("providers", "x.py", "from t2r_export.cli import output"),
    ("data", "x.py", "from t2r_export.training.stages import x"),
    ("quality", "x.py", "from t2r_export.training.trainer import Trainer"),
    ("cli", "x.py", "import torch"),
]


def test_package_has_at_most_16_modules_of_its_own() -> None:
    assert len([file for file in modules("t2r_export", "*.py") if file.name != "__init__.py"]) <= 16


@pytest.mark.parametrize("place, files", LINES)
def test_lines(place: str, files: str) -> None:
    """A limit goes up only with a reason in the commit, and down with the lines."""
    found = (Path(__file__).parents[1] / place).rglob(files)
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in found)
    assert LINES[place, files] - 500 < lines <= LINES[place, files]


@pytest.mark.parametrize("room, file, source", FORBIDDEN)
def test_forbidden_import_is_refused(room: str, file: str, source: str) -> None:
    assert refused(room, file, source)
    hidden = "def f():\n" + "\n".join(f"    {line}" for line in source.splitlines())
    assert refused(room, file, hidden) or room == "cli"


def test_no_import_circle() -> None:
    """Within and between both packages, including imports for types only."""
    files = {}
    for package in ("t2r_export", "t2r_runtime"):
        for file in modules(package):
            name = ".".join([package, *file.relative_to(folder(package)).with_suffix("").parts])
            files[name.removesuffix(".__init__")] = file
    arrows = {
        name: {other for other, _ in imports(file.read_text(encoding="utf-8")) if other in files and other != name}
        for name, file in files.items()
    }
    assert circle(arrows) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """The names left after repeatedly removing those without outgoing or without incoming arrows."""
    left = dict(arrows)
    while True:
        aimed = {name for targets in left.values() for name in targets}
        ends = [name for name, targets in left.items() if not targets & left.keys() or name not in aimed]
        if not ends:
            return sorted(left)
        for name in ends:
            del left[name]


def test_runtime_imports_neither_torch_nor_toolchain() -> None:
    banned = {"torch", "onnx", "t2r_export", "transformers"}
    for file in modules("t2r_runtime"):
        assert not {name.partition(".")[0] for name, _ in imports(file.read_text(encoding="utf-8"))} & banned, file


def test_other_runtimes_import_toolchain_only_in_tests_and_demos() -> None:
    runtimes = Path(__file__).parents[1] / "runtimes"
    languages = [folder for folder in runtimes.iterdir() if folder.is_dir() and folder.name != "python"]
    files = [file for language in languages for file in language.rglob("*.py") if "node_modules" not in file.parts]
    knowing = [
        file
        for file in files
        if "t2r_export" in {name.partition(".")[0] for name, _ in imports(file.read_text("utf-8"))}
    ]
    assert {file.relative_to(runtimes).parts[1] for file in knowing} == {"demo", "tests"}


def loaded_by(program: str) -> set[str]:
    """Top-level modules loaded in a new interpreter after running `program`."""
    report = f"{program}\nimport sys; print('\\n', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_runtime_loads_no_torch() -> None:
    names = [
        ".".join(("t2r_runtime", *f.relative_to(folder("t2r_runtime")).with_suffix("").parts))
        for f in modules("t2r_runtime")
    ]
    program = f"import {', '.join(name.removesuffix('.__init__') for name in names)}"
    assert loaded_by(program) & {"torch", "onnx", "transformers", "accelerate", "t2r_export"} == set()


@pytest.mark.parametrize("room", RUNTIME)
def test_arrows_of_runtime(room: str) -> None:
    for file in modules("t2r_runtime", f"{room}/*.py"):
        for name, _ in imports(file.read_text(encoding="utf-8")):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            assert package != "t2r_runtime" or other not in RUNTIME or other in {room, *RUNTIME[room]}, (file, name)


@pytest.mark.parametrize("module", [f.stem for f in modules("t2r_export", "config/*.py")])
def test_configs_load_no_heavy_packages(module: str) -> None:
    assert loaded_by(f"import t2r_export.config.{module}".removesuffix(".__init__")) & HEAVY == set()


def verbs() -> list[str]:
    from t2r_export.cli import VERBS

    return list(VERBS)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in verbs())])
def test_help_loads_no_heavy_packages(arguments: list[str]) -> None:
    program = f"from t2r_export.cli import main; assert main({arguments!r}) == 0"
    assert loaded_by(program) & (HEAVY | {"numpy"}) == set()


@pytest.mark.parametrize("verb", ["", *RUN_VERBS])
def test_runtime_help_loads_no_toolchain(verb: str) -> None:
    program = f"from t2r_runtime.cli import main; assert main({[verb, '--help'][not verb :]!r}) == 0"
    assert loaded_by(program) & (HEAVY | {"numpy", "t2r_export"}) == set()


@pytest.mark.skipif(
    "PYTHONSAFEPATH" not in os.environ or "PYTHONPATH" in os.environ, reason="run on the source tree, not on packages"
)
def test_installed_packages_are_tested() -> None:
    for package in ("t2r_export", "t2r_runtime"):
        assert "site-packages" in folder(package).parts
        assert (folder(package) / "py.typed").is_file()

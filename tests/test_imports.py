"""The arrows of the design: who may import whom, and what `--help` must not wait for."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HEAVY = {"torch", "onnx", "transformers", "accelerate"}


def folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def imports(source: str) -> Iterator[str]:
    """Every module that the source imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here, so that a search finds them"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(files: list[Path], banned: set[str]) -> list[str]:
    assert files
    return [
        f"{file.name} imports {name}"
        for file in files
        for name in imports(file.read_text(encoding="utf-8"))
        if any(name == ban or name.startswith(f"{ban}.") for ban in banned)
    ]


def modules(package: str, pattern: str = "**/*.py") -> list[Path]:
    return sorted(folder(package).glob(pattern))


STAGES = {
    f"t2r_export.{stage}"
    for stage in (
        "convert",
        "fold",
        "export",
        "verify",
        "finetune",
        "describe",
        "bench",
        "demo",
        "graph",
        "golden",
        "quantize",
        "compile",
        "recipe",
        "cli",
    )
}
RULES = {
    "the runtime needs neither torch nor the toolchain": (
        modules("t2r_runtime"),
        {"torch", "onnx", "t2r_export", "transformers"},
    ),
    "mixers know no graph": (modules("t2r_export", "mixers/*.py"), {"onnx", "onnxruntime", *STAGES}),
    "the model knows no graph": (
        [folder("t2r_export") / name for name in ("model.py", "ops.py", "positions.py")],
        {"onnx", "onnxruntime", *STAGES},
    ),
    "importers know no stage": (modules("t2r_export", "importers/*.py"), {"onnx", "onnxruntime", *STAGES}),
    "configs import nothing heavy": (
        [folder("t2r_export") / name for name in ("config.py", "finetune_config.py")]
        + modules("t2r_export", "mixer_configs/*.py"),
        HEAVY | {"numpy"},
    ),
    "nothing installed needs transformers": (modules("t2r_export"), {"transformers"}),
    "stages know no command line": (modules("t2r_export", "*.py"), {"click"}),
}
ENDS_PROCESSES = {"__main__.py", "errors.py"}  # these two are the command line's own


@pytest.mark.parametrize("rule", RULES)
def test_arrow(rule: str) -> None:
    files, banned = RULES[rule]
    assert offenders([f for f in files if f.name not in ENDS_PROCESSES], banned) == []


@pytest.mark.parametrize("line", ["import torch", "from torch import nn", "def f():\n    import torch.nn as nn"])
def test_a_wrong_arrow_is_seen(line: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(line)
    assert offenders([file], {"torch"})


def loaded_by(program: str) -> set[str]:
    """Top-level modules that are loaded in a new interpreter after it ran `program`."""
    report = f"{program}\nimport sys; print('\\n', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", ["t2r_runtime", *(f"t2r_runtime.{f.stem}" for f in modules("t2r_runtime", "*.py"))])
def test_runtime_brings_in_no_torch(module: str) -> None:
    assert loaded_by(f"import {module.removesuffix('.__init__')}") & {*HEAVY, "t2r_export"} == set()


@pytest.mark.parametrize("module", ["config", "mixer_configs", "finetune_config", "errors"])
def test_module_brings_in_no_torch(module: str) -> None:
    assert loaded_by(f"import t2r_export.{module}") & HEAVY == set()


def verbs() -> list[str]:
    from t2r_export.cli import VERBS

    return list(VERBS)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in verbs())])
def test_help_brings_in_nothing_heavy(arguments: list[str]) -> None:
    program = f"from t2r_export.cli import main; assert main({arguments!r}) == 0"
    assert loaded_by(program) & {*HEAVY, "onnxruntime", "tokenizers"} == set()


@pytest.mark.skipif("PYTHONSAFEPATH" not in os.environ, reason="run from the source tree, outside tox")
def test_the_installed_packages_are_tested() -> None:
    for package in ("t2r_export", "t2r_runtime"):
        assert "site-packages" in folder(package).parts
        assert (folder(package) / "py.typed").is_file()

"""Python processes that we start never import files of the current folder."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import small
from comparison.remote import Remote
from t2r_export import python
from t2r_export.config.bench import BenchConfig
from t2r_export.graph.ort import to_ort
from t2r_export.providers.bench import bench
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

ROOT = Path(__file__).parents[1]
TRAPS = ("onnxruntime", "numpy", "runpy", "t2r_runtime")


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with modules named like libraries, which create a file when imported."""
    place = tmp_path / "downloads"
    place.mkdir()
    for name in TRAPS:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nraise SystemExit('sprung')\n")
    monkeypatch.chdir(place)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path


def test_trap_works(trapped: Path) -> None:
    """A plain Python with `-m` or `-c` imports them."""
    bare = {"command": f"env -u PYTHONSAFEPATH {sys.executable}"}
    with python.start("-c", "import onnxruntime", **bare, stderr=-3) as process:
        process.wait()
    assert (trapped / "sprung").exists()


@pytest.mark.slow
def test_export_to_ort(trapped: Path) -> None:
    small.graph(trapped / "g.onnx", "learned")
    to_ort(trapped / "g.onnx", trapped / "g.ort")
    assert (trapped / "g.ort").exists() and not (trapped / "sprung").exists()


# the last: Python 3.10 ignores PYTHONSAFEPATH; the worker program protects itself
@pytest.mark.parametrize("command", [python.THIS, sys.executable, f"env -u PYTHONSAFEPATH {sys.executable}"])
def test_remote_decoder(command: str, trapped: Path) -> None:
    small.graph(trapped / "g.onnx", "learned")
    there = Remote(Decoder, command, trapped / "g.onnx", threads=1)
    there.step(1)
    there.close()
    assert not (trapped / "sprung").exists()


def test_bench(trapped: Path) -> None:
    small.graph(trapped / "g.onnx", "learned")
    bench([trapped / "g.onnx"], BenchConfig(steps=1, warmup=0, prompt=2, rounds=1, starts=1, threads=1))
    assert not (trapped / "sprung").exists()


def test_run_output() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); print(sys.flags.safe_path); sys.exit(3)"
    assert python.run("-c", program) == (3, "out\nTrue\n", "err\n")
    with pytest.raises(UserError, match="expected a command that starts Python; received 'no/such/python'"):
        python.start("-c", "", command="no/such/python")


@pytest.mark.parametrize("folder", ["t2r_export", "benchmarks"])
def test_only_python_module_starts_pythons(folder: str) -> None:
    """`sys.executable` occurs only there, except where -I, -P or a script's own path excludes the current folder."""
    exempt = {"t2r_export/python.py", "benchmarks/comparison/timing.py", "benchmarks/beside_llama.py"}
    for file in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        named = any(isinstance(node, ast.Attribute) and node.attr == "executable" for node in ast.walk(tree))
        assert not named or str(file.relative_to(ROOT)) in exempt, file

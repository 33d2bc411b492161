"""The cost of importing the package, and its installation from its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import t2r_runtime
from runtime import graphs

EXTRAS = {
    *(
        ("jinja2", "chat"),
        ("jinja2", "run"),
        ("click", "run"),
        ("faiss-cpu", "retrieval"),
        ("llguidance", "structured"),
    ),
    *((name, "serve") for name in ("jinja2", "click", "starlette", "uvicorn")),
}
REPORT = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{REPORT}"], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()[-1].split())


def test_contract_imports_no_onnxruntime() -> None:
    assert (
        loaded_by("import t2r_runtime.contract.signature, t2r_runtime.errors")
        & {"numpy", "onnxruntime", "tokenizers", "torch"}
        == set()
    )


def test_runtime_imports_no_torch(tmp_path: Path) -> None:
    graph = str(graphs.save(tmp_path / "g.onnx"))
    loaded = loaded_by(f"from t2r_runtime import Decoder; Decoder({graph!r}, threads=1).generate([3], 5)")
    assert "onnxruntime" in loaded
    toolchain = {"torch", "t2r_export", "onnx", "transformers", "tokenizers"}
    assert loaded & (toolchain | {"click"}) == set()
    assert loaded & {"email", "hashlib", "zipfile"} == set(), "what a first token needs not waits until it is needed"
    arguments = ["generate", graph, "--ids", "3", "--max-tokens", "5", "--json"]
    assert loaded_by(f"from t2r_runtime.cli import main; assert main({arguments!r}) == 0") & toolchain == set()


@pytest.mark.parametrize("package", ["t2r_runtime", "t2r_export"])
def test_onnx_runtime_sends_nothing(package: str, tmp_path: Path) -> None:
    """Its own builds of 1.29 and later would leave events in this folder for a server of theirs."""
    graph, home = graphs.save(tmp_path / "g.onnx"), tmp_path / "home"
    home.mkdir()
    known = {key: value for key, value in os.environ.items() if key not in ("CI", "ORT_DISABLE_TELEMETRY")}
    program = f"import {package}, onnxruntime as ort; ort.InferenceSession({str(graph)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, env=known | {"HOME": str(home), "XDG_CACHE_HOME": ""})
    assert list(home.rglob("*")) == []


def test_the_public_names_exist() -> None:
    assert all(hasattr(t2r_runtime, name) for name in t2r_runtime.__all__)
    assert set(t2r_runtime.__all__) <= set(dir(t2r_runtime))
    with pytest.raises(AttributeError, match="no attribute 'Decodr'"):
        t2r_runtime.Decodr  # noqa: B018
    assert t2r_runtime.__version__[0].isdigit()


@pytest.mark.skipif("PYTHONSAFEPATH" not in os.environ, reason="run from the source tree, outside tox")
def test_the_distribution_says_the_same_version() -> None:
    from importlib.metadata import requires, version

    assert version("t2r-runtime") == t2r_runtime.__version__
    asked = [line.partition("; extra == ") for line in requires("t2r-runtime") or []]
    needed = {(line.partition(">")[0], extra.strip("'\"")) for line, _, extra in asked}
    assert needed == {("numpy", ""), ("onnxruntime", ""), ("tokenizers", ""), *EXTRAS}

"""Every allocation, file operation and call of ONNX Runtime in libt2r fails once."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_build import GOLDEN, Run

TEXTS = ["bytes", "pieces", "unigram"]
# kind, whether later operations of the call fail too, and the least number of faults
PLANS = [
    *(("memory", how, case, 300) for how in ("once", "on") for case in ("decoder", "translator", "batch", *TEXTS)),
    *(("memory", "once", case, 500) for case in ("rows", "companion")),
    *((kind, "once", case, 100) for kind in ("memory", "onnxruntime") for case in ("adapters", "vectors", "plugin")),
    *(("files", how, case, 10) for how in ("once", "on") for case in ("decoder", "companion", "translator")),
    *(("onnxruntime", "once", case, 200) for case in ("decoder", "rows", "companion", "translator", "batch")),
]


@pytest.fixture
def folder(case: str, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The graphs of a case."""
    if case == "vectors":
        return request.getfixturevalue("vectors")
    if case != "plugin":
        return GOLDEN
    (tmp_path / "plugin.so").symlink_to(request.getfixturevalue("plugin"))
    (tmp_path / "tiny-hybrid.onnx").symlink_to(GOLDEN / "tiny-hybrid.onnx")
    return tmp_path


@pytest.mark.parametrize("kind, how, case, least", PLANS)
def test_each_fault(
    checked: Path, run: Run, tmp_path: Path, folder: Path, kind: str, how: str, case: str, least: int
) -> None:
    """Each call fails with the right kind and changes nothing, then succeeds; the results are those without faults."""

    def tortured(kind: str) -> tuple[str, int]:
        (tmp_path / kind).mkdir()
        done = run(checked / "torture", kind, how, folder, tmp_path / kind, case)
        return done.stdout, int(done.stderr.split()[-2])

    results, faults = tortured(kind)
    assert tortured("none") == (results, 0)
    assert faults >= least


@pytest.mark.parametrize(
    "kind, case, said",
    [
        ("memory", "leaks", "LeakSanitizer: detected memory leaks"),
        ("memory", "swallows", "operation 1: it succeeded"),
        ("memory", "mistakes", "operation 1: an error of the kind state"),
        ("memory", "changes", "operation 1: it changed something"),
        ("files", "tears", "operation 2: it changed something"),
    ],
)
def test_wrong_answers_are_found(checked: Path, run: Run, tmp_path: Path, kind: str, case: str, said: str) -> None:
    """Calls that leak, swallow a failure, return another kind, change something, or write in place."""
    done = run(checked / "torture", kind, "once", GOLDEN, tmp_path, case, status=None)
    assert done.returncode != 0
    assert said in done.stderr

"""docs/notebook.ipynb runs, and prints its stored outputs.

    T2R_DATA=... python tests/test_notebook.py

runs it and stores the outputs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
NAMES = {"SRC": "checkpoints/stories260K", "text.txt": "text/tinystories.txt"}  # notebook name → test data


def executed(cells: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Run each code cell in the current folder: its printed text and pictures."""
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
            yield [*_text(printed.getvalue()), *map(_picture, plt.get_fignums())]


def _text(printed: str) -> list[dict[str, Any]]:
    text = printed.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


def _picture(number: int) -> dict[str, Any]:
    """Convert an open figure to SVG and close it."""
    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "t2r", "svg.fonttype": "none"}):
        plt.figure(number).savefig(written, format="svg", metadata={"Date": None})
    plt.close(number)
    picture = written.getvalue().partition("<svg")
    data = {"image/svg+xml": "".join(picture[1:]).splitlines(keepends=True)}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def enter(folder: Path, data: Path) -> None:
    """Change to `folder`, with the notebook's inputs in it."""
    os.chdir(folder)
    for name, source in NAMES.items():
        Path(name).symlink_to(data.resolve() / source)


@pytest.mark.filterwarnings("default::DeprecationWarning:matplotlib")
def test_notebook(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    stored = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("T2R_CACHE", str(tmp_path / "cache"))
    enter(tmp_path, data)
    with matplotlib.rc_context({"backend": "agg"}):
        found = list(executed(cells))
    assert [_plain(outputs) for outputs in found] == [_plain(outputs) for outputs in stored]
    assert ["image/svg+xml"] in [_plain(outputs) for outputs in found]


def _plain(outputs: list[dict[str, Any]]) -> list[str]:
    """Printed text, and only the formats of pictures, since pictures contain times."""
    return [line for output in outputs for line in output.get("text", output.get("data", ()))]


def test_changed_output_is_detected() -> None:
    cells = [{"cell_type": "code", "source": ["print(", "1 + 1)"]}, {"cell_type": "markdown", "source": ["text"]}]
    assert [_plain(outputs) for outputs in executed(cells)] == [["2\n"]]


def main() -> None:
    import tempfile

    matplotlib.use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        enter(Path(folder), Path(os.environ["T2R_DATA"]))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, outputs) in enumerate(zip(code, executed(code), strict=True), 1):
            cell |= {"execution_count": number, "outputs": outputs}
        os.chdir(NOTEBOOK.parent)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Files, tests and links in README, docs and model cards exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "models").glob("*/README.md")),
    *sorted((ROOT / "runtimes").glob("*.md")),
    *sorted((ROOT / "runtimes" / "contract").glob("*.md")),
    *sorted((ROOT / "runtimes").glob("*/README.md")),
]
CODE = re.compile(r"`[^`\n]+`|^ {4}\S.*$|^```.*?^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(
    r"(?<![\w/.…-])(?:\.\./)*(?:tests|t2r_export|t2r_runtime|benchmarks|models|docs|runtimes)/[\w./*-]*\w(?:::\w+)?(?![\w*{…<])"
)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(?:#[^)]*)?\)")
FILE = re.compile(r"[\w/]+\.(?:py|md|toml|h|hpp|cpp|js)")
TEST = re.compile(r"(?<![\w/:])test(?:_[a-z0-9]+){3,}(?!\.py|\w|/)")  # a test function without its file
TESTS = {
    name
    for folder in ("tests", "runtimes")
    for file in (ROOT / folder).rglob("test_*.py")
    for name in (file.stem, *re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8")))
}
ROOTS = (ROOT, ROOT / "t2r_export", ROOT / "runtimes" / "python")  # possible roots of a path


def missing(text: str, page: Path) -> Iterator[str]:
    """Files, tests and links in a page that do not exist, as written."""
    for code in CODE.findall(text):
        for path in PATH.findall(code):
            if path.isupper() or "NAME" in path:
                continue
            file, _, test = path.replace("../", "").partition("::")
            found = [match for root in ROOTS for match in root.glob(file)]
            if not found or (test and f"def {test}(" not in found[0].read_text(encoding="utf-8")):
                yield path
        yield from (name for name in TEST.findall(code) if name not in TESTS)
    for shown, target in LINK.findall(text):
        if "://" not in target and not (page.parent / target).exists():
            yield target
        if FILE.fullmatch(shown) and Path(target).name != Path(shown).name:
            yield shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_paths_exist(page: Path) -> None:
    assert list(missing(page.read_text(encoding="utf-8"), page)) == []


def test_tables_name_their_command() -> None:
    gone = [page.name for page in PAGES if "command that is gone" in page.read_text(encoding="utf-8")]
    assert gone == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("`tests/mixers/test_feature_maps.py`", ["tests/mixers/test_feature_maps.py"]),
        ("`tests/model/test_ops.py::test_nothing`", ["tests/model/test_ops.py::test_nothing"]),
        ("`test_nothing_at_all` and `test_tables_name_their_command`", ["test_nothing_at_all"]),
        ("    python benchmarks/nothing.py --steps 3", ["benchmarks/nothing.py"]),
        ("[graph.py](t2r_export/graph/recorder.py)", ["graph.py"]),
        ("[the page](docs/nothing.md#part)", ["docs/nothing.md"]),
        ("`config/mixers/NAME.py`, `tests/test_convert.py`, `models/*/recipe.toml`", []),
        ("`tests/test_convert.py::test_seed` and [graph](t2r_export/graph/recorder.py)", []),
    ],
)
def test_missing_path_is_detected(text: str, found: list[str]) -> None:
    assert list(missing(text, ROOT / "README.md")) == found


UNPUBLISHED = re.compile(
    r"\b(?:pip|npm) install\b[^`\n]*?(?<![\w./-])(?:t2r-runtime|t2r-export|onnxruntime-ep-t2r)\b(?!-VERSION)[^`\n]*"
)
MESSAGES = [file for folder in ("t2r_export", "runtimes/python/t2r_runtime") for file in (ROOT / folder).rglob("*.py")]


def test_no_install_line_names_a_package_that_no_registry_has() -> None:
    found = [line for file in (*PAGES, *MESSAGES) for line in UNPUBLISHED.findall(file.read_text(encoding="utf-8"))]
    assert [line for line in found if "--find-links build/release" not in line] == []
    for line in ('pip install "t2r-runtime[serve]"', "pip install numpy t2r-export", "pip install onnxruntime-ep-t2r"):
        assert UNPUBLISHED.findall(line)
    for line in ('pip install "./runtimes/python[run]"', "npm install ./t2r-runtime-VERSION.tgz"):
        assert not UNPUBLISHED.findall(line)

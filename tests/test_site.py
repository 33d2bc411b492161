"""Site pages made by .ci/site.py; tox's environment `docs` builds them all."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
HEADER = (ROOT / "runtimes" / "cpp" / "include" / "t2r.h").read_text(encoding="utf-8")
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / ".ci" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_in_navigation_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", CONFIG, flags=re.MULTILINE)
    assert len(listed) > 30 and len(set(listed)) == len(listed)


def test_c_reference(site: ModuleType) -> None:
    page = site.c_reference(HEADER)
    named = {name for heading in re.findall(r"^### (.+)$", page, re.MULTILINE) for name in heading.split(", ")}
    functions = set(re.findall(r"^T2R_API .*?(\w+)\(", HEADER, re.MULTILINE))
    types = set(re.findall(r"^\} (\w+);", HEADER, re.MULTILINE))
    assert len(functions) > 40 and functions | types <= named
    assert "### t2r_open\n\nOpen a step graph, at the start of a text." in page
    assert "T2R_API t2r_kind t2r_open(const char *path" in page


def test_python_reference(site: ModuleType) -> None:
    import t2r_runtime

    page = site.python_reference()
    for name in t2r_runtime.__all__:
        assert re.search(rf"^::: t2r_runtime\.[\w.]+\.{name}$", page, re.MULTILINE), name


def test_options_reference(site: ModuleType) -> None:
    page = site.options_reference()
    assert "## finetune\n" in page and "- `--start-positions INTEGER` Start windows" in page
    assert "\\[default: &lt;|endoftext|&gt;" not in page and "separator=&lt;|endoftext|&gt;" in page
    assert "`t2r-run`, the program of t2r-runtime, has the verbs `generate`, " in page


def test_keys_reference(site: ModuleType) -> None:
    from t2r_export.checkpoints.importers import IMPORTERS

    page = site.keys_reference()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(IMPORTERS)
    assert "| `tokenizer_config.json` | read: special and added tokens, the chat template |\n" in page
    assert "| `gpt_oss` | experts with biases and clamped gates, in weights of 4 bits (MXFP4) |\n" in page


def test_page_of_proved_models(site: ModuleType) -> None:
    measured = json.loads((ROOT / "tests/checkpoints/importers/proved.json").read_text(encoding="utf-8"))
    page = site.proved_reference()
    assert re.findall(r"^\| ([^|]+) \| `", page, re.MULTILINE) == list(measured["models"])
    assert "over 40 chained steps" in page and "**npu, openvino, webgpu**" in page and "{" not in page
    assert "| gpt2 | `GPT2` | 4e-07 | 3e-07 | 7e-07 | 2e-02 | 2e-01 | 5e-07 | 4e-07 | - | 288 + |" in page


@pytest.mark.parametrize(
    "text, source, uri, made",
    [
        ("[a](docs/faq.md#b)", "README.md", "index.md", "[a](faq.md#b)"),
        ("![a](docs/plots/x.svg)", "README.md", "index.md", "![a](plots/x.svg)"),
        ("[a](../README.md)", "docs/faq.md", "faq.md", "[a](index.md)"),
        ("[a](../runtimes/js/README.md)", "docs/faq.md", "faq.md", "[a](runtimes/js.md)"),
        ("[a](../runtimes/js)", "docs/faq.md", "faq.md", "[a](runtimes/js.md)"),
        ("[a](../../docs/faq.md)", "runtimes/js/README.md", "runtimes/js.md", "[a](../faq.md)"),
        ("[a](notebook.ipynb)", "docs/faq.md", "faq.md", "[a](notebook.md)"),
        ("[tox.ini](../tox.ini), [b](../tox.ini)", "docs/faq.md", "faq.md", "`tox.ini`, b (`tox.ini`)"),
        ("[a](../nothing.md)", "docs/faq.md", "faq.md", "[a](../nothing.md)"),  # MkDocs refuses it
        ("[a](https://arxiv.org)", "docs/faq.md", "faq.md", "[a](https://arxiv.org)"),
    ],
)
def test_links(site: ModuleType, text: str, source: str, uri: str, made: str) -> None:
    assert site.relinked(text, source, uri) == made


def test_numbers_stay_on_one_line(site: ModuleType) -> None:
    cells = "<td>-0.2 (1 to 2)</td><td>2 cores of a machine that reads 50 GB/s</td><td>a 3</td><td align='left'>4</td>"
    marked = cells.replace("<td>-", '<td class="number">-').replace("'left'", "'left' class=\"number\"")
    assert site.on_page_content(cells, None, None, None) == marked


def test_notebook_page(site: ModuleType) -> None:
    outputs = [{"text": ["2\n"]}, {"data": {"image/svg+xml": ["<svg>\n", "</svg>"]}}]
    cells = [
        {"cell_type": "markdown", "source": ["# A\n"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": outputs},
    ]
    page = "# A\n\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n![output of the cell](data:image/svg+xml;base64,"
    assert site.notebook_page({"cells": cells}).startswith(page)


@pytest.mark.parametrize(
    "output, found",
    [
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', ["https://fonts.example/a.css"]),
        ("<script async src=//cdn.example/a.js>", ["//cdn.example/a.js"]),
        ('<a href="https://arxiv.org">paper</a><script src="assets/a.js">', []),
    ],
)
def test_remote_asset_is_detected(site: ModuleType, output: str, found: list[str]) -> None:
    assert site.remote(output) == found

"""The contract agrees with the code, and its loop runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from contract_pages import ALL
from runtime import graphs
from runtime.conftest import Open
from runtime.test_tokenizer import pieces
from t2r_export.graph.releases import ONNXRUNTIME
from t2r_runtime import CONTRACT_VERSION

PAGE = ALL


def test_every_metadata_key_is_explained_and_no_other() -> None:
    explained = re.findall(r"^\| `(t2r\.\w+)` \|", PAGE, flags=re.MULTILINE)
    chat = {"template": "", "tokens": {}}
    optional = {
        "chat_template": chat,
        "generation": {},
        "input_size": 7,
        "hidden_size": 7,
        "untrained": 7,
        "adapters": ("a",),
    }
    signature = graphs.signature("source", **optional)
    assert sorted(explained) == sorted([*signature.to_metadata(), ONNXRUNTIME])
    assert f"contract version {CONTRACT_VERSION}" in PAGE


@pytest.mark.parametrize("kind", ["constant", "growing", "both"])
def test_the_loop_of_the_page_equals_decoder(kind: str, opened: Open, tmp_path: Path) -> None:
    graph = graphs.save(tmp_path / "g.onnx", kind)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names: dict[str, Any] = {
        "np": np,
        "json": json,
        "session": session,
        "metadata": session.get_modelmeta().custom_metadata_map,
        "tokens": [3, 1, 4],
        "read": 0,
        "wanted": 12,
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 1
    exec(blocks[0], names)
    assert names["tokens"] == [3, 1, 4, *opened(kind).generate([3, 1, 4], 9, graphs.GREEDY)]


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).parents[2] / "runtimes" / "python" / "README.md"
    program = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)

    graphs.save(tmp_path / "story.onnx", tokenizer=pieces())
    program[0] = program[0].replace('tokenizer.encode("Once upon a time")', "[3, 4]")  # the tiny model knows 11 tokens
    exec(program[0], {})
    assert capsys.readouterr().out

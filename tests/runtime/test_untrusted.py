"""Readers of untrusted files, called directly: the worker of chat templates, what is no graph, adapters."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runtime import graphs
from t2r_runtime.contract import chat_worker
from t2r_runtime.errors import UserError
from t2r_runtime.session.model_file import check_once
from t2r_runtime.session.refusals import existing_graph, not_opened

RENDERED: list[tuple[str, dict[str, Any] | None, dict[str, str]]] = [
    ("{% generation %}{{ a | tojson }}{% endgeneration %}", {"a": {"é": 1}}, {"text": '{"é": 1}'}),
    ("{{ dict(a=1) }}{{ namespace(b=2).b }}{{ strftime_now('%%') }}", {}, {"text": "{'a': 1}2%"}),
    ("{{ namespace(_b=2) }}", {}, {"error": "no names of a namespace that begin with _"}),
    ("{{ raise_exception('no') }}", {}, {"error": "no"}),
    ("{{ 'ab' * 50 }}", {}, {"error": "the rendered text has more than 90 characters"}),
    ("{{ 1 / 0 }}", None, {"text": ""}),  # only compiled
]


@pytest.mark.parametrize("template, names, answer", RENDERED)
def test_worker(template: str, names: dict[str, Any] | None, answer: dict[str, str]) -> None:
    request = {"template": template, "limit": 90} | ({} if names is None else {"names": names})
    assert chat_worker.render(request) == answer


def test_worker_answers_in_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, out = [], io.StringIO()
    monkeypatch.setattr("resource.setrlimit", lambda kind, values: limits.append(values))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"template": "{{ a", "limit": 9})))
    monkeypatch.setattr(sys, "stdout", out)
    chat_worker.main()
    assert "error" in json.loads(out.getvalue())
    assert limits == [(1 << 30, 1 << 30), (5, 5)]
    monkeypatch.setattr(chat_worker, "environment", lambda: (_ for _ in ()).throw(MemoryError))
    assert "memory" in chat_worker.render({"template": "", "limit": 9})["error"]


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"x")
    return out.getvalue()


@pytest.mark.parametrize("content", [b"GGUF\3\0", zipped("model/data.pkl"), b"\2" + bytes(7) + b"{}"])
def test_checkpoint_is_no_graph(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(UserError, match="an exported graph; received the checkpoint"):
        existing_graph(tmp_path / "model")


@pytest.mark.parametrize("content", [zipped("other"), b"PK\3\4", b"\x08\x0a", b"\xff" * 8 + b"{"])
def test_other_files_may_be_graphs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    assert existing_graph(tmp_path / "model") == tmp_path / "model"


def test_folders_are_no_graphs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an ONNX file"):
        existing_graph(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="the checkpoint"):
        existing_graph(tmp_path)


@pytest.mark.parametrize(
    "text, kind, said",
    [
        ("Current official support for domain ai.onnx is till opset 24.", "version", "a newer one"),
        ("com.x:New(-1) is not a registered function/op", "version", "com.x:New"),
        ('External data path does not exist: "w.data"', "weights", "w.data"),
        ("Unsupported model IR version: 99, max supported IR version: 12", "version", "99"),
        ("External initializer is short", "weights", "short"),
        ("no idea", "graph", "no idea"),
    ],
)
def test_what_onnx_runtime_says(text: str, kind: str, said: str) -> None:
    error = not_opened(Path("g.onnx"), "ONNX Runtime", RuntimeError(text))
    assert error.kind == kind and said in str(error)


@pytest.mark.parametrize(
    "content, said",
    [
        (b"\x72\x7f", "cut off"),  # a metadata entry past the end
        (b"\x08" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x08\xff", "cut off"),
        (b"\x0b\x00", "3"),  # a group
        (b"\x08\x07\x3a\x00\x09" + bytes(8) + b"\x0d" + bytes(4) + b"\x3a\x00", "a graph twice"),
        (b"\x72\x05\x10\x02\x0a\x01a" + b"\x72\x03\x0a\x01a", "the key a twice"),
        (b"\x00\x00\x00\x00ORTM\xff", None),
    ],
)
def test_outer_fields_of_a_graph(tmp_path: Path, content: bytes, said: str | None) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    if said is None:
        check_once(tmp_path / "g.onnx")
        return
    with pytest.raises(UserError, match=re.escape(said)):
        check_once(tmp_path / "g.onnx")


def test_names_of_adapters() -> None:
    signature = graphs.signature("constant", adapters=("legal", "poems"))
    assert [signature.adapter(name) for name in (None, "poems")] == [0, 2]
    with pytest.raises(UserError, match="an adapter of this graph: legal, poems; received .*legl"):
        signature.adapter("legl")
    with pytest.raises(UserError, match="a graph with adapters"):
        graphs.signature("constant").adapter("legal")
    with pytest.raises(UserError, match="a graph that reads token ids; received one that reads vectors of 4 elements"):
        graphs.signature("constant", input_size=4).require_tokens()

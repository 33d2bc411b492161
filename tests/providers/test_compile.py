"""Refused input of compilation, and failures that leave no file.

tests/parity/test_compile.py compares compiled graphs on providers that can compile.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import small
from cli_models import Output, run
from t2r_export.graph.reader import CONTEXT, load, programs
from t2r_export.providers import compile as module
from t2r_export.providers.compile import compile_graph
from t2r_runtime import PROVIDERS, Decoder, UserError
from t2r_runtime.cli.providers import read
from t2r_runtime.contract.signature import ROLES
from t2r_runtime.session.session import open_graph

Saved = tuple[Path, Path]


@pytest.fixture
def paths(tmp_path: Path) -> Saved:
    small.graph(tmp_path / "g.onnx")
    return tmp_path / "g.onnx", tmp_path / "c.onnx"


@pytest.fixture
def compiler(pretender: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A provider that claims to compile, but takes no node."""
    monkeypatch.setitem(PROVIDERS, pretender, dataclasses.replace(PROVIDERS[pretender], compiles=True))
    return pretender


def with_program(source: Path, out: Path) -> None:
    model = onnx.load(source)
    model.graph.node.append(helper.make_node(CONTEXT, [], ["program"], domain="com.microsoft"))
    onnx.save(model, out)


def test_refused(paths: Saved, capsys: Output) -> None:
    source, out = paths

    def said(*options: object) -> str:
        return run(capsys, "save", *options, "--as", "compiled", code=2)[1]

    assert said(source, out) == (
        "t2r: expected a provider that can save programs, one of qnn; received cpu; choose one of those\n"
    )
    assert said(source, out, "--provider", "tpu").startswith("t2r: expected a provider of: cpu, t2r, cuda, ")
    assert "received c.ort; correct it" in said(source, "c.ort", "--provider", "qnn")
    assert "which does not exist" in said(source.with_name("none.onnx"), out, "--provider", "qnn")
    assert said(source, out, "--provider", "qnn:htp_arch") == (
        "t2r: expected a provider as NAME:KEY=VALUE,KEY=VALUE; received 'qnn:htp_arch'; correct --provider\n"
    )
    assert not out.exists()


def test_compiled_graph_is_refused(paths: Saved, compiler: str) -> None:
    source, out = paths
    assert programs(load(source)) == 0
    with_program(source, out)
    assert programs(load(out)) == 1
    with pytest.raises(UserError, match="received .*c.onnx, which is compiled already; compile its source"):
        compile_graph(out, out.with_name("again.onnx"), compiler)


@pytest.mark.parametrize("content", [b"", b"no graph"])
def test_other_file_is_refused(content: bytes, paths: Saved, compiler: str) -> None:
    paths[0].write_bytes(content)
    with pytest.raises(UserError):
        compile_graph(*paths, compiler)
    assert [file.name for file in paths[0].parent.iterdir()] == ["g.onnx"]


def test_uncompiled_nodes_are_refused(paths: Saved, compiler: str) -> None:
    with pytest.raises(UserError, match="expected every node on nowhere; received "):
        compile_graph(*paths, compiler)
    with pytest.raises(UserError, match="a compiled program from nowhere; received none; see docs/providers.md"):
        compile_graph(*paths, compiler, allow_fallback=True)
    assert [file.name for file in paths[0].parent.iterdir()] == ["g.onnx"]


@pytest.mark.parametrize("role, option", [("prefill", "--prefill"), ("draft_check", "--draft-check")])
def test_companions_are_refused(
    role: str, option: str, paths: Saved, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.graph(paths[0], **{role: True})
    monkeypatch.setattr(module, "open_graph", lambda path, *_, **others: open_graph(path, **others))
    with pytest.raises(UserError) as caught:
        compile_graph(*paths, compiler)
    assert str(caught.value) == (
        f"expected a graph without companions to compile; received one with a {ROLES[role]}; export without {option}"
    )
    assert not paths[1].exists()


def test_unopenable_program_is_not_kept(paths: Saved, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def writes(path: Path, provider: str, *rest: Any, companions: Any = None) -> Any:
        seen.append((path.name, rest))
        if len(rest) == 4:  # the compilation
            with_program(path, Path(rest[3]["ep.context_file_path"]))
            return open_graph(path)
        raise UserError("a program for this chip", "one for another", "name the chip")

    monkeypatch.setattr(module, "open_graph", writes)
    paths[1].write_bytes(b"what stood here before")
    with pytest.raises(UserError, match="name the chip"):
        compile_graph(*paths, compiler, {"soc_model": "1"})
    assert [name for name, _ in seen] == ["g.onnx", "compiled.onnx"]
    assert all(rest[1] == {"soc_model": "1"} for _, rest in seen)
    assert paths[1].read_bytes() == b"what stood here before"
    monkeypatch.setattr(
        module,
        "open_graph",
        lambda path, *rest, **given: writes(path, *rest, **given) if len(rest) == 5 else Decoder(paths[0]),
    )
    report = compile_graph(*paths, compiler, {"soc_model": "1"})
    assert (report.files, report.programs) == ([paths[1]], 1)
    assert programs(load(paths[1])) == 1
    assert sorted(file.name for file in paths[0].parent.iterdir()) == ["c.onnx", "g.onnx"]


def test_options_of_provider(paths: Saved, capsys: Output) -> None:
    assert read("cuda") == ("cuda", {}, False)
    assert read("qnn+cpu:soc_model=57,shapes=a:1x2,b:3x4,htp_arch=75") == (
        "qnn",
        {"soc_model": "57", "shapes": "a:1x2,b:3x4", "htp_arch": "75"},
        True,
    )
    for mistake in ("cpu:x", "cuda+tpu", "cuda+", "tpu"):
        _, error = run(capsys, "generate", paths[0], "--ids", "1", "--provider", mistake, code=2)
        assert error.startswith("t2r: expected ") and error.count("\n") == 1

"""Folders for a web server: contents, file list, refused inputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import small
from t2r_export.cli import main
from t2r_export.providers import pack as packing
from t2r_export.providers.pack import pack
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    (tmp_path / "graphs").mkdir()
    small.graph(tmp_path / "graphs" / "story.onnx", "learned", prefill=True)
    return tmp_path / "graphs" / "story.onnx"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page" / "ort").mkdir(parents=True)
    (tmp_path / "page" / "index.html").write_text("<title>a page</title>")
    (tmp_path / "page" / "ort" / "ort.mjs").write_text("export {}")
    return tmp_path / "page"


def listed(folder: Path) -> dict[str, tuple[int, str]]:
    return {f["name"]: (f["size"], f["sha256"]) for f in json.loads((folder / "files.json").read_text())["files"]}


def found(folder: Path) -> dict[str, tuple[int, str]]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "files.json"]
    hashed = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return {file.relative_to(folder).as_posix(): (file.stat().st_size, digest) for file, digest in hashed.items()}


def test_list_matches_folder(graph: Path, page: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "softmax.onnx", "softmax")
    packed = pack(graph, tmp_path / "web", page, tmp_path / "softmax.onnx")
    assert listed(tmp_path / "web") == found(tmp_path / "web")
    names = set(found(tmp_path / "web"))
    assert {"story.onnx", "softmax.onnx", "index.html", "ort/ort.mjs"} <= names
    assert len(names) == len(packed.files) == 6, "and the prefill graph, and the weights of both"
    head = json.loads((tmp_path / "web" / "files.json").read_text())
    assert (head["pack"], head["graph"], head["peer"]) == (1, "story.onnx", "softmax.onnx")
    assert head["quantization"] == "none"
    Decoder(tmp_path / "web" / "story.onnx").prefill([1, 2, 3])


def test_verb(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web").mkdir()
    assert main(["save", str(graph), str(tmp_path / "web"), "--as", "web", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {file["name"] for file in report["files"]} == set(listed(tmp_path / "web"))
    assert main(["save", str(graph), str(tmp_path / "web"), "--as", "web"]) == 2
    assert "expected a new or empty folder to write to" in capsys.readouterr().err
    assert main(["save", str(graph), str(tmp_path / "more"), "--as", "web"]) == 0
    assert "3 files and their list" in capsys.readouterr().out
    small.graph(tmp_path / "one.onnx", "softmax")
    assert main(["save", str(tmp_path / "one.onnx"), str(tmp_path / "one"), "--as", "web"]) == 0
    assert "1 file and its list" in capsys.readouterr().out


def test_damaged_companion_is_refused(graph: Path, tmp_path: Path) -> None:
    [weights] = graph.parent.glob("*.data")
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="to match the hash in its name"):
        pack(graph, tmp_path / "web")
    assert not (tmp_path / "web").exists()


@pytest.mark.parametrize("name", ["story.onnx", "files.json"])
def test_duplicate_name_is_refused(name: str, graph: Path, page: Path, tmp_path: Path) -> None:
    (page / name).write_text("mine")
    with pytest.raises(UserError, match=f"received {name} twice"):
        pack(graph, tmp_path / "web", page)
    assert not (tmp_path / "web").exists()


def test_missing_page_is_refused(graph: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="a folder with a page"):
        pack(graph, tmp_path / "web", tmp_path / "nothing")
    (page / "link").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="ordinary files in .* received .*link"):
        pack(graph, tmp_path / "web", page)
    (page / "link").unlink()
    monkeypatch.setattr(packing, "MAX_FILES", 1)
    with pytest.raises(UserError, match="at most 1 ordinary files in .* received 2"):
        pack(graph, tmp_path / "web", page)
    assert not (tmp_path / "web").exists()


def test_no_graph_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "story.onnx").write_bytes(b"no graph")
    for path in ("story.onnx", "other.onnx"):
        assert main(["save", str(tmp_path / path), str(tmp_path / "web"), "--as", "web"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert not (tmp_path / "web").exists()

"""A file that is streamed weight by weight equals the file that onnx writes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import Tensor

import small
from graph.written import NOTES, SIGNATURE, computes, message, names, weights, write_graph
from t2r_export.graph import file as graph_file
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import write
from t2r_export.graph.weights import refer
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("without_trial")


def naive(values: dict[str, Tensor]) -> onnx.ModelProto:
    model = message()
    model.graph.initializer.extend(numpy_helper.from_array(w.detach().numpy(), name) for name, w in values.items())
    helper.set_model_props(model, {**SIGNATURE.to_metadata(), **NOTES})
    return model


def test_inline_is_what_onnx_would_write(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    assert write_graph(weights(), path) == [path]
    read = onnx.load(path)
    assert read == naive(weights())
    assert path.stat().st_size == len(naive(weights()).SerializeToString())
    onnx.checker.check_model(read, full_check=True)
    assert computes(path, weights())
    assert names(tmp_path) == {"g.onnx"}


@pytest.mark.parametrize("external_bytes", [1, graph_file.EXTERNAL_BYTES])
def test_metadata_stand_before_the_graph(external_bytes: int, tmp_path: Path) -> None:
    """In every file, so that a runtime can read them without an ONNX parser."""
    _, report = small.graph(tmp_path / "g.onnx", "window", prefill=True, draft_check=True)
    graphs = [path for path in report.files if path.suffix == ".onnx"]
    assert len(graphs) == 3
    graphs += write_graph(weights(), tmp_path / "w.onnx", external_bytes)[:1]
    for path in graphs:
        fields = field_numbers(path.read_bytes())
        assert fields[-1] == 7
        assert fields.count(7) == 1
        assert fields.count(14) == len(onnx.load(path, load_external_data=False).metadata_props) > 10


def field_numbers(content: bytes) -> list[int]:
    """Numbers of the fields of a protobuf message, in order."""

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte, at = content[at], at + 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    at, fields = 0, []
    while at < len(content):
        tag = varint()
        fields.append(tag >> 3)
        assert tag & 7 in (0, 2)
        length = varint()
        at += length if tag & 7 == 2 else 0
    assert at == len(content)
    return fields


@pytest.mark.parametrize("external_bytes", [1, graph_file.EXTERNAL_BYTES])
def test_parts_are_stored_as_one(external_bytes: int, tmp_path: Path) -> None:
    whole = weights()
    stacked = {"first": (whole["first"][:1], whole["first"][1:].T.contiguous().T), "second": whole["second"]}
    write_graph(stacked | {"third": tuple(whole["third"].split(130))}, tmp_path / "g.onnx", external_bytes)
    assert onnx.load(tmp_path / "g.onnx").graph.initializer[0].dims == [3, 100]
    assert computes(tmp_path / "g.onnx", whole)


@settings(max_examples=25)
@given(
    st.dictionaries(st.text("abcß.", min_size=1, max_size=200), st.lists(st.integers(0, 40), max_size=3), max_size=4)
)
def test_any_names_and_sizes(shapes: dict[str, list[int]]) -> None:
    """Lengths in the file are written in 7-bit groups, so sizes on both sides of 128 and 16,384 bytes."""
    values = {name: torch.arange(float(np.prod(shape))).reshape(shape) for name, shape in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        written = bytearray()
        patch.setattr(graph_file, "replacing", lambda path: _Memory(written))
        patch.setattr(graph_file, "open", lambda *_: _Sink(written), raising=False)
        write_graph(values, Path("g.onnx"))
    assert onnx.load_from_string(bytes(written)) == naive(values)


class _Memory:
    def __init__(self, data: bytearray) -> None:
        self.data = data

    def __enter__(self) -> str:
        return "part"

    def __exit__(self, *_: Any) -> None:
        pass


class _Sink(_Memory):
    def __enter__(self) -> Any:
        return self

    def write(self, data: Any) -> None:
        self.data.extend(data)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)


@pytest.mark.parametrize("wide", [torch.float64, torch.bfloat16])
def test_weights_are_stored_as_float32(wide: torch.dtype, tmp_path: Path) -> None:
    values = {name: w.to(wide).requires_grad_() for name, w in weights().items()}
    values["second"] = values["second"].T.contiguous().T  # not contiguous
    write_graph(values, tmp_path / "g.onnx")
    assert onnx.load(tmp_path / "g.onnx") == naive({name: w.detach().float() for name, w in values.items()})


def test_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.onnx"
    sizes = sorted(4 * w.numel() for w in weights().values())
    size, large = sum(sizes), sizes[-1]
    monkeypatch.setattr(graph_file, "_LARGE", large)
    assert write_graph(weights(), path, external_bytes=size) == [path]
    graph, data = write_graph(weights(), path, external_bytes=size - 1)
    assert graph == path
    assert data.parent == tmp_path
    assert data.name.startswith("g.onnx.")
    assert data.suffix == ".data"
    read = onnx.load(path)
    for tensor in read.graph.initializer:
        tensor.ClearField("data_location")  # written out by onnx.load though it is the default
    assert read == naive(weights())
    onnx.checker.check_model(str(path), full_check=True)
    places = {
        t.name: {e.key: e.value for e in t.external_data}
        for t in onnx.load(path, load_external_data=False).graph.initializer
    }
    assert {place["location"] for place in places.values()} == {data.name}
    for place in places.values():
        assert int(place["offset"]) % (4096 if int(place["length"]) >= large else 64) == 0
    assert any(int(place["offset"]) % 4096 for place in places.values())
    assert computes(path, weights())


def test_the_same_weights_give_the_same_files(tmp_path: Path) -> None:
    first = [p.read_bytes() for p in write_graph(weights(), tmp_path / "g.onnx", 1)]
    files = write_graph(weights(), tmp_path / "g.onnx", 1)
    assert [p.read_bytes() for p in files] == first
    assert names(tmp_path) == {p.name for p in files}


def test_old_data_leaves_with_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    neighbours = ["h.onnx", "g.onnx.notes", "xg.onnx", "g.onnx2"]
    for name in neighbours:
        write_graph(weights(), tmp_path / name, 1)
    kept = names(tmp_path)
    old, new = (write_graph(weights(seed), path, 1)[1] for seed in (1, 2))
    assert old != new
    assert names(tmp_path) == kept | {path.name, new.name}
    assert computes(path, weights(2))
    write_graph(weights(3), path)
    assert names(tmp_path) == kept | {path.name}, "a graph with its weights inside needs no file beside it"


def test_a_name_is_not_a_pattern(tmp_path: Path) -> None:
    other = write_graph(weights(1), tmp_path / "g1.onnx", 1)
    write_graph(weights(2), tmp_path / "g[12].onnx", 1)
    write_graph(weights(3), tmp_path / "*.onnx", 1)
    assert all(file.is_file() for file in other)
    assert computes(tmp_path / "g1.onnx", weights(1))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected to be able to write .*nowhere/g.onnx; received No such file or dir"):
        write_graph(weights(), tmp_path / "nowhere" / "g.onnx")
    with pytest.raises(UserError, match="expected a file name to write to; received the folder .*; name a file inside"):
        write_graph(weights(), tmp_path)


def test_the_check_comes_before_the_name(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    model = message()
    model.graph.initializer.extend(refer(name, weight) for name, weight in weights(2).items())
    bundle = Bundle(model, SIGNATURE, dict(weights(2)))
    write_graph(weights(1), path)

    def refuse(part: Path) -> None:
        assert computes(part, weights(2))
        assert computes(path, weights(1))
        raise UserError("another", "this", "stop")

    for external_bytes in (1, graph_file.EXTERNAL_BYTES):
        with pytest.raises(UserError, match="expected another"):
            write(bundle, path, external_bytes, refuse)
        assert names(tmp_path) == {path.name}
        assert computes(path, weights(1))
